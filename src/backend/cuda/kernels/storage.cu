// Writing keys and values into pages, and reading back what a slot holds. The conversion rule is
// that of recipe::float8: byte = convert(x / scale) to nearest even, saturating; value =
// decode(byte) * scale; scale = absmax / largest, 1 for a zero vector, never subnormal.

#define SMALLEST_NORMAL 1.17549435e-38f

DEV float largest_of(int format) {
  return format == FORMAT_E4M3 ? 448.f : format == FORMAT_E5M2 ? 57344.f : 127.f;
}

// Rounds a finite x to a format with `mantissa` explicit bits and exponent bias `bias`.
DEV u8 encode_fp8(float x, int mantissa, int bias, float largest) {
  u32 bits = __float_as_uint(x), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  u32 top = __float_as_uint(largest);
  if (magnitude > top) magnitude = top;
  if (magnitude < (u32)(128 - bias) << 23) {
    // Beside a number whose last bit weighs as much as the smallest step, the sum rounds.
    float anchor = __uint_as_float((u32)(127 + 24 - bias - mantissa) << 23);
    return (u8)(sign | (__float_as_uint(__uint_as_float(magnitude) + anchor) - __float_as_uint(anchor)));
  }
  int shift = 23 - mantissa;
  u32 rounded = (magnitude + ((1u << (shift - 1)) - 1u) + ((magnitude >> shift) & 1u)) >> shift;
  return (u8)(sign | (rounded - ((u32)(127 - bias) << mantissa)));
}

DEV u8 encode(int format, float x) {
  if (format == FORMAT_E4M3) return encode_fp8(x, 3, 7, 448.f);
  if (format == FORMAT_E5M2) return encode_fp8(x, 2, 15, 57344.f);
  return (u8)(signed char)(int)rintf(fminf(fmaxf(x, -127.f), 127.f));
}

// The value of a stored byte at scale 1.
DEV float decode(int format, u8 byte) {
  if (format == FORMAT_INT8) return (float)(signed char)byte;
  u32 sign = (u32)(byte & 0x80u) << 24, rest = byte & 0x7fu;
  // Sign, exponent and mantissa move into f32's fields; a product corrects the exponent's bias.
  float f = format == FORMAT_E4M3 ? __uint_as_float(rest << 20) * __uint_as_float(247u << 23)
                                  : __uint_as_float(rest << 21) * __uint_as_float(239u << 23);
  return __uint_as_float(__float_as_uint(f) | sign);
}

// Whether x / scale, rounded without a bound on the exponent, exceeds the largest finite value.
DEV bool saturates(int format, float scaled) {
  float magnitude = fabsf(scaled);
  return format == FORMAT_E4M3 ? magnitude > 464.f : format == FORMAT_E5M2 ? magnitude >= 61440.f : magnitude >= 127.5f;
}

DEV float scale_of(int format, float absmax) {
  if (absmax == 0.f) return 1.f;
  float scale = absmax / largest_of(format);
  return scale < SMALLEST_NORMAL ? SMALLEST_NORMAL : scale;
}

struct Store {
  const float* k; const float* v;       // [rows, kv_heads * head_dim]
  const int2* rows;                     // slot, position
  const Page* table; int max_pages;     // [slots][max_pages]
  int row_count, kv_heads, head_dim, layer, native;
  Side side[2];
  u64* broken;                          // first number that cannot be stored; see report()
};

// Keeps the first broken number in the order layer, row, side, element, with its leading bits.
DEV void report(u64* broken, int layer, int row, int side, int element, float x) {
  u64 key = (u64)layer << 54 | (u64)row << 37 | (u64)side << 36 | (u64)element << 20 | (u64)(__float_as_uint(x) >> 12);
  atomicMin(broken, key);
}

// A warp per head vector; grid: (row, side, head) / 8.
KERNEL(256) store(Store s) {
  i64 item = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  int lane = threadIdx.x & 31, head = (int)(item % s.kv_heads);
  item /= s.kv_heads;
  int which = (int)(item & 1), row = (int)(item >> 1);
  if (row >= s.row_count) return;
  const float* x = (which ? s.v : s.k) + ((i64)row * s.kv_heads + head) * s.head_dim;
  const Side side = s.side[which];
  int2 place = s.rows[row];
  Page page = s.table[(i64)place.x * s.max_pages + place.y / PAGE];
  int token = place.y % PAGE, vector = head * PAGE + token;
  bool native = side.format == FORMAT_F16 || side.format == FORMAT_BF16;
  // A lane takes four neighbouring elements at a time; vectors are multiples of eight.
  if (native) {
    u16* to = (u16*)(page.stored + side.elements) + (i64)vector * s.head_dim;
    for (int d = lane * 4; d < s.head_dim; d += 128) {
      float4 v = *(const float4*)(x + d);
      float own[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (!is_finite(half_to_f32(side.format, f32_to_half(side.format, own[i]))))
          report(s.broken, s.layer, row, which, head * s.head_dim + d + i, own[i]);
      put4(to, side.format, d, v.x, v.y, v.z, v.w);
    }
    return;
  }
  float absmax = 0.f;
  for (int d = lane * 4; d < s.head_dim; d += 128) {
    float4 v = *(const float4*)(x + d);
    float own[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (!is_finite(own[i])) report(s.broken, s.layer, row, which, head * s.head_dim + d + i, own[i]);
      absmax = fmaxf(absmax, fabsf(own[i]));
    }
  }
  float scale = side.scale;
  if (side.dynamic) {
    scale = scale_of(side.format, warp_max(absmax));
    if (lane == 0) ((float*)(page.stored + side.scales))[vector] = scale;
  }
  u8* to = (u8*)(page.stored + side.elements) + (i64)vector * s.head_dim;
  u32 count = 0;  // changed elements, and saturated ones from bit 16 on
  for (int d = lane * 4; d < s.head_dim; d += 128) {
    float4 v = *(const float4*)(x + d);
    float own[4] = {v.x, v.y, v.z, v.w};
    u32 bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float scaled = own[i] / scale;
      u8 byte = encode(side.format, scaled);
      bytes |= (u32)byte << 8 * i;
      float as_native = half_to_f32(s.native, f32_to_half(s.native, own[i]));
      count += (decode(side.format, byte) * scale != as_native ? 1u : 0u) + (saturates(side.format, scaled) ? 0x10000u : 0u);
    }
    *(u32*)(to + d) = bytes;
  }
  for (int m = 16; m; m >>= 1) count += __shfl_xor_sync(WARP, count, m);
  if (lane == 0) ((u32*)(page.counts + side.counts))[vector] = count;
}

struct Slot {
  const Page* table;      // the slot's pages
  const Side* sides;      // [layers][2]
  const int* tokens;      // [layers]
  int kv_heads, head_dim;
};

struct Totals { u64 saturated; u64 changed; float scale_min; float scale_max; };

DEV void atomic_min(float* to, float x) { atomicMin((int*)to, __float_as_int(x)); }
DEV void atomic_max(float* to, float x) { atomicMax((int*)to, __float_as_int(x)); }

// Counters and extremes of dynamic scales per layer and side; all are order-independent. Scales
// are positive, so they order as integers do. grid: layers * 2.
KERNEL(256) slot_totals(Slot s, Totals* out) {
  __shared__ u64 saturated, changed;
  __shared__ float low, high;
  if (threadIdx.x == 0) { saturated = 0; changed = 0; low = __int_as_float(0x7f800000); high = 0.f; }
  __syncthreads();
  const Side side = s.sides[blockIdx.x];
  i64 vectors = (i64)s.tokens[blockIdx.x / 2] * s.kv_heads;
  u64 mine = 0;
  if (side.format >= FORMAT_E4M3)
    for (i64 i = threadIdx.x; i < vectors; i += 256) {
      int position = (int)(i / s.kv_heads), vector = (int)(i % s.kv_heads) * PAGE + position % PAGE;
      Page page = s.table[position / PAGE];
      u32 count = ((const u32*)(page.counts + side.counts))[vector];
      mine += (u64)(count & 0xffffu) | (u64)(count >> 16) << 32;
      if (side.dynamic) {
        float scale = ((const float*)(page.stored + side.scales))[vector];
        atomic_min(&low, scale);
        atomic_max(&high, scale);
      }
    }
  atomicAdd(&changed, mine & 0xffffffffull);
  atomicAdd(&saturated, mine >> 32);
  __syncthreads();
  if (threadIdx.x == 0) {
    Totals t;
    t.saturated = saturated; t.changed = changed; t.scale_min = low; t.scale_max = high;
    out[blockIdx.x] = t;
  }
}

// Largest absolute stored element per layer and side, decoded; `out` starts as zeros.
// grid: layers * 2, chunks of tokens.
KERNEL(256) slot_absmax(Slot s, float* out) {
  const Side side = s.sides[blockIdx.x];
  int tokens = s.tokens[blockIdx.x / 2];
  float largest = 0.f;
  for (int position = blockIdx.y; position < tokens; position += gridDim.y) {
    Page page = s.table[position / PAGE];
    for (int i = threadIdx.x; i < s.kv_heads * s.head_dim; i += 256) {
      int head = i / s.head_dim, d = i % s.head_dim, vector = head * PAGE + position % PAGE;
      i64 at = (i64)vector * s.head_dim + d;
      float x;
      if (side.format < FORMAT_E4M3) {
        x = half_to_f32(side.format, ((const u16*)(page.stored + side.elements))[at]);
      } else {
        float scale = side.dynamic ? ((const float*)(page.stored + side.scales))[vector] : side.scale;
        x = decode(side.format, ((const u8*)(page.stored + side.elements))[at]) * scale;
      }
      largest = fmaxf(largest, fabsf(x));
    }
  }
  largest = warp_max(largest);
  if ((threadIdx.x & 31) == 0) atomic_max(&out[blockIdx.x], largest);
}
