// Head vectors on their way from products into pages: conversion, norms, rotation, storage. The conversion
// rules are those of recipe::int4 and recipe::float8: byte = convert(x / scale) to nearest even, saturating;
// value = decode(byte) * scale; scale = absmax / largest, 1 for a zero vector, never subnormal. Templates
// only: which kernels are compiled, and beside which others, the files behind this one say.

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
  int turned;                           // half of the elements that rotary turns, an even number
  Side side[2];
  u64* broken;                          // first number that cannot be stored; see report()
  u64 sink, sink_bytes;                 // [slots] of sink_bytes: the first sink_tokens tokens
  int sink_tokens;
};

// A head vector in the registers of a warp: lane l holds, for i < COUNT and p = 2 * l + 64 * i, two
// neighbouring elements (x[i][0], x[i][1]) and two others (x[i][2], x[i][3]), which rotary turns
// against each other where p < `turned`: elements p and p + turned. The others follow in the same
// way behind those, so that all p below half a vector make up the whole. Zeros where p lies beyond.
// One suffices up to 128 elements, two up to 256, four up to 512: kernels of these are apart, as they take
// more registers and shared memory.
template <int COUNT> struct HeadVector { float x[COUNT][4]; };

// The places of a lane's pairs; `turned`, an even number, is half of the elements that are rotated.
DEV int first_of(int p, int turned) { return p < turned ? p : p + turned; }
DEV int second_of(int p, int turned, int half) { return p < turned ? p + turned : p + half; }

template <int COUNT> DEV HeadVector<COUNT> load_vector(const void* data, int format, i64 at, int half, int turned, int lane) {
  HeadVector<COUNT> v;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    int p = 2 * lane + 64 * i;
    float2 a, b;
    a.x = a.y = 0.f; b = a;
    if (p < half) { a = load2(data, format, at + first_of(p, turned)); b = load2(data, format, at + second_of(p, turned, half)); }
    v.x[i][0] = a.x; v.x[i][1] = a.y; v.x[i][2] = b.x; v.x[i][3] = b.y;
  }
  return v;
}

// Element of the vector that x[i][j] of a lane is.
DEV int element_of(int i, int j, int half, int turned, int lane) {
  int p = 2 * lane + 64 * i;
  return (j >> 1 ? second_of(p, turned, half) : first_of(p, turned)) + (j & 1);
}

// Keeps the first broken number in the order layer, row, side, element, with its leading bits.
DEV void report(u64* broken, int layer, int row, int side, int element, float x) {
  u64 key = (u64)layer << 54 | (u64)row << 37 | (u64)side << 36 | (u64)element << 20 | (u64)(__float_as_uint(x) >> 12);
  atomicMin(broken, key);
}

// Whether one of two numbers in a 16-bit format is not finite.
DEV bool is_broken(int format, u32 pair) {
  u32 exponent = format == FORMAT_F16 ? 0x7c00u : 0x7f80u;
  return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

// Reports the elements that cannot be stored: not finite (in `format` where that has 16 bits), or
// beyond what groups hold.
template <int COUNT> DEV void report_broken(const Store& s, int which, int row, int head, int lane, int format, const HeadVector<COUNT>& v) {
#pragma unroll
  for (int i = 0; i < COUNT; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float x = v.x[i][j];
      bool held = format >= FORMAT_INT4 ? fabsf(x) <= INT4_LARGEST : is_finite(format <= FORMAT_BF16 ? half_to_f32(format, f32_to_half(format, x)) : x);
      if (!held) report(s.broken, s.layer, row, which, head * s.head_dim + element_of(i, j, s.head_dim / 2, s.turned, lane), x);
    }
}

DEV u16 f16_below(float x) { u16 h; asm("cvt.rm.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
DEV u16 f16_above(float x) { u16 h; asm("cvt.rp.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }

// Stores a head vector, which lies in `x`, in groups of 4-bit elements; returns the number of changed
// elements.
DEV u32 store_groups(const Store& s, int format, const float* x, u8* to, int lane) {
  int group = group_of(format), dim = s.head_dim;
  u32 count = 0;
  for (int g = 0; g < dim / group; g++) {
    float own[2];
    own[0] = x[g * group + lane];
    own[1] = group == 64 ? x[g * group + 32 + lane] : own[0];
    float low = -warp_max(-fminf(own[0], own[1])), high = warp_max(fmaxf(own[0], own[1]));
    u16 minimum_bits = f16_below(low + 0.f);
    float minimum = f16_to_f32(minimum_bits), step = (high - minimum) / 15.f;
    u16 scale_bits = f16_above(step > 0.f ? step : 1.f);
    float scale = f16_to_f32(scale_bits);
#pragma unroll
    for (int part = 0; part < 2; part++) {
      if (part * 32 >= group) break;
      u32 code = (u32)fminf(fmaxf(rintf((own[part] - minimum) / scale), 0.f), 15.f);
      float back = half_to_f32(s.native, f32_to_half(s.native, int4_value(code, scale, minimum)));
      count += back != half_to_f32(s.native, f32_to_half(s.native, own[part])) ? 1u : 0u;
      u32 next = __shfl_down_sync(WARP, code, 1);
      if ((lane & 1) == 0) to[(g * group + part * 32 + lane) / 2] = (u8)(code | next << 4);
    }
    if (lane == 0) ((u32*)(to + dim / 2))[g] = (u32)scale_bits | (u32)minimum_bits << 16;
  }
  return count;
}

// A head vector in shared memory, element after element; a row per warp of a block.
template <int COUNT> DEV const float* spread_vector(const HeadVector<COUNT>& v, float (*rows)[COUNT * 128], int half, int turned, int lane) {
  float* to = rows[threadIdx.x >> 5];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < COUNT; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (2 * lane + 64 * i < half) to[element_of(i, j, half, turned, lane)] = v.x[i][j];
  __syncwarp();
  return to;
}

// Where a row's token belongs: slot and position, and the page of that position.
struct Place { int2 at; Page page; };
DEV Place place_of(const Store& s, int row) {
  Place p;
  p.at = s.rows[row];
  p.page = s.table[(i64)p.at.x * s.max_pages + p.at.y / PAGE];
  return p;
}

// Stores a head vector of one side (0: keys, 1: values); see split_row for DIM.
template <int COUNT, int DIM> DEV void store_vector(const Store& s, int which, int row, const Place& to_place, int head, int lane, const HeadVector<COUNT>& v) {
  __shared__ float rows[8][COUNT * 128];
  const Side side = which ? s.side[1] : s.side[0];  // an index would move both to memory
  int2 place = to_place.at;
  Page page = to_place.page;
  int dim = DIM ? DIM : s.head_dim, turned = DIM ? DIM / 2 : s.turned, vector = head * PAGE + place.y % PAGE, half = dim / 2;
  bool in_sink = place.y < s.sink_tokens && side.format > FORMAT_BF16;
  int format = in_sink ? s.native : side.format;
  if (format == FORMAT_F16 || format == FORMAT_BF16) {
    u16* to = (u16*)(page.stored + side.elements) + (i64)vector * dim;
    if (in_sink) {
      to = (u16*)(s.sink + place.x * s.sink_bytes + side.sink) + ((i64)place.y * s.kv_heads + head) * dim;
      if (lane == 0) ((u32*)(page.counts + side.counts))[vector] = 0;
    }
    bool broken = false;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      int p = 2 * lane + 64 * i;
      if (p >= half) continue;
      u32 first = pack2(format, v.x[i][0], v.x[i][1]), second = pack2(format, v.x[i][2], v.x[i][3]);
      broken = broken || is_broken(format, first) || is_broken(format, second);
      *(u32*)(to + first_of(p, turned)) = first;
      *(u32*)(to + second_of(p, turned, half)) = second;
    }
    if (broken) report_broken(s, which, row, head, lane, format, v);
    return;
  }
  report_broken(s, which, row, head, lane, side.format, v);
  u32 count = 0;  // changed elements, and saturated ones from bit 16 on
  if (side.format >= FORMAT_INT4) {
    u8* to = (u8*)(page.stored + side.elements) + (i64)vector * packed_bytes(side.format, dim);
    count = store_groups(s, side.format, spread_vector(v, rows, half, turned, lane), to, lane);
    for (int m = 16; m; m >>= 1) count += __shfl_xor_sync(WARP, count, m);
    if (lane == 0) ((u32*)(page.counts + side.counts))[vector] = count;
    return;
  }
  float scale = side.scale;
  if (side.dynamic) {
    float absmax = 0.f;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) absmax = fmaxf(absmax, fabsf(v.x[i][j]));
    absmax = warp_max(absmax);
    scale = scale_of(side.format, absmax);
    if (lane == 0) ((float*)(page.stored + side.scales))[vector] = absmax == 0.f ? ZEROS_SCALE : scale;
  }
  u8* to = (u8*)(page.stored + side.elements) + (i64)vector * dim;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    int p = 2 * lane + 64 * i;
    if (p >= half) continue;
    u8 bytes[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float x = v.x[i][j], scaled = x / scale;
      bytes[j] = encode(side.format, scaled);
      float as_native = half_to_f32(s.native, f32_to_half(s.native, x));
      count += (decode(side.format, bytes[j]) * scale != as_native ? 1u : 0u) + (saturates(side.format, scaled) ? 0x10000u : 0u);
    }
    *(u16*)(to + first_of(p, turned)) = (u16)(bytes[0] | bytes[1] << 8);
    *(u16*)(to + second_of(p, turned, half)) = (u16)(bytes[2] | bytes[3] << 8);
  }
  for (int m = 16; m; m >>= 1) count += __shfl_xor_sync(WARP, count, m);
  if (lane == 0) ((u32*)(page.counts + side.counts))[vector] = count;
}

// Passes a head vector through a one-byte format under a scale of its own; one with a number that is
// not finite stays as it is.
template <int COUNT> DEV void round_vector(int format, HeadVector<COUNT>& v) {
  float absmax = 0.f;
  bool broken = false;
#pragma unroll
  for (int i = 0; i < 4 * COUNT; i++) {
    absmax = fmaxf(absmax, fabsf(v.x[i >> 2][i & 3]));
    broken = broken || !is_finite(v.x[i >> 2][i & 3]);
  }
  if (__any_sync(WARP, broken)) return;
  float scale = scale_of(format, warp_max(absmax));
#pragma unroll
  for (int i = 0; i < 4 * COUNT; i++) {
    float& x = v.x[i >> 2][i & 3];
    x = decode(format, encode(format, x / scale)) * scale;
  }
}

// Passes head vectors through a one-byte format, in place. A warp per head vector.
template <int COUNT> DEV void round_vectors(float* x, i64 vectors, int head_dim, int format) {
  i64 item = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  int lane = threadIdx.x & 31, half = head_dim / 2;
  if (item >= vectors) return;
  HeadVector<COUNT> v = load_vector<COUNT>(x, FORMAT_F32, item * head_dim, half, half, lane);
  round_vector(format, v);
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    int p = 2 * lane + 64 * i;
    if (p >= half) continue;
    put2(x, FORMAT_F32, item * head_dim + p, v.x[i][0], v.x[i][1]);
    put2(x, FORMAT_F32, item * head_dim + half + p, v.x[i][2], v.x[i][3]);
  }
}

// A warp per head vector; grid: (row, side, head) / 8.
template <int COUNT> DEV void store_heads(const Store& s) {
  i64 item = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  int lane = threadIdx.x & 31, head = (int)(item % s.kv_heads);
  item /= s.kv_heads;
  int which = (int)(item & 1), row = (int)(item >> 1);
  if (row >= s.row_count) return;
  i64 at = ((i64)row * s.kv_heads + head) * s.head_dim;
  store_vector<COUNT, 0>(s, which, row, place_of(s, row), head, lane, load_vector<COUNT>(which ? s.v : s.k, FORMAT_F32, at, s.head_dim / 2, s.turned, lane));
}
// Queries, keys and values side by side, [rows, (heads + 2 * kv_heads) * head_dim] in `format`; without
// values where keys are values.
struct Heads {
  const void* packed; const float* bias;            // null for none
  const float* q_norm; const float* k_norm; const float* v_norm;  // [head_dim], null for none
  const float* q_cos; const float* q_sin;           // [positions, turned], for queries
  const float* k_cos; const float* k_sin;           // and for keys
  void* q;                                          // [rows, heads * head_dim] in q_format
  int format, q_format, heads; float eps;
  int queries;                                      // one-byte format that queries pass through, or 0
  int keys_are_values;                              // values are not packed: they are what keys were
  Store store;
};

// A row's cosines and sines as a lane needs them.
template <int COUNT> struct Turn { float2 cos[COUNT], sin[COUNT]; };

template <int COUNT> DEV Turn<COUNT> load_turn(const float* cos, const float* sin, i64 angle, int turned, int lane) {
  Turn<COUNT> t;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    int p = 2 * lane + 64 * i;
    t.cos[i].x = t.cos[i].y = 1.f; t.sin[i].x = t.sin[i].y = 0.f;
    if (p < turned) { t.cos[i] = *(const float2*)(cos + angle + p); t.sin[i] = *(const float2*)(sin + angle + p); }
  }
  return t;
}
template <int COUNT> DEV void rotate(HeadVector<COUNT>& v, const Turn<COUNT>& t, int turned, int lane) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    if (2 * lane + 64 * i >= turned) continue;
    float* x = v.x[i];
    float2 c = t.cos[i], s = t.sin[i];
    float a0 = x[0], a1 = x[1], b0 = x[2], b1 = x[3];
    x[0] = a0 * c.x - b0 * s.x; x[1] = a1 * c.y - b1 * s.y;
    x[2] = b0 * c.x + a0 * s.x; x[3] = b1 * c.y + a1 * s.y;
  }
}
template <int COUNT> DEV void norm_vector(HeadVector<COUNT>& v, const HeadVector<COUNT>& weights, int dim, float eps) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4 * COUNT; i++) sum = fmaf(v.x[i >> 2][i & 3], v.x[i >> 2][i & 3], sum);
  float inverse = rsqrtf(warp_sum(sum) / (float)dim + eps);
#pragma unroll
  for (int i = 0; i < 4 * COUNT; i++) v.x[i >> 2][i & 3] = v.x[i >> 2][i & 3] * inverse * weights.x[i >> 2][i & 3];
}

// A block takes every `parts`th eight heads of a row: a warp its queries, then keys, then values, the
// next head under way while one is worked on. Instructions bound it, so usual head vectors, all of which
// are turned, have a DIM that the compiler knows; it is 0 for others.
template <int COUNT, int DIM> DEV void split_row(const Heads& h, int parts, int format, int q_format) {
  int row = blockIdx.x / parts, lane = threadIdx.x & 31;
  int dim = DIM ? DIM : h.store.head_dim, half = dim / 2, turned = DIM ? DIM / 2 : h.store.turned;
  int keys = h.heads, values = h.heads + h.store.kv_heads, end = values + h.store.kv_heads;
  int head = (blockIdx.x - row * parts) * 8 + (threadIdx.x >> 5), step = parts * 8;
  if (head >= end) return;
  // Values are where keys are where these are the same.
  int shared = h.keys_are_values ? h.store.kv_heads : 0;
  i64 packed = (i64)row * (end - shared) * dim;
  auto load = [&](int head) {
    int at = (head - (head >= values ? shared : 0)) * dim;
    HeadVector<COUNT> v = load_vector<COUNT>(h.packed, format, packed + at, half, turned, lane);
    if (h.bias) {
      HeadVector<COUNT> b = load_vector<COUNT>(h.bias, FORMAT_F32, at, half, turned, lane);
#pragma unroll
      for (int i = 0; i < 4 * COUNT; i++) v.x[i >> 2][i & 3] += b.x[i >> 2][i & 3];
    }
    return v;
  };
  HeadVector<COUNT> next = load(head), v, weights;
  auto take = [&] {
    v = next;
    if (head + step < end) next = load(head + step);
  };
  auto weights_of = [&](const float* norm) {
    if (norm) weights = load_vector<COUNT>(norm, FORMAT_F32, 0, half, turned, lane);
  };
  Place place = place_of(h.store, row);
  i64 angle = (i64)place.at.y * turned;
  if (head < keys) {
    Turn<COUNT> turn = load_turn<COUNT>(h.q_cos, h.q_sin, angle, turned, lane);
    weights_of(h.q_norm);
    for (; head < keys; head += step) {
      take();
      if (h.q_norm) norm_vector(v, weights, dim, h.eps);
      rotate(v, turn, turned, lane);
      if (h.queries) round_vector(h.queries, v);
      i64 to = ((i64)row * h.heads + head) * dim;
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        int p = 2 * lane + 64 * i;
        if (p >= half) continue;
        put2(h.q, q_format, to + first_of(p, turned), v.x[i][0], v.x[i][1]);
        put2(h.q, q_format, to + second_of(p, turned, half), v.x[i][2], v.x[i][3]);
      }
    }
  }
  for (; head < end; head += step) {
    bool is_value = head >= values;
    take();
    const float* norm = is_value ? h.v_norm : h.k_norm;
    weights_of(norm);
    if (norm) norm_vector(v, weights, dim, h.eps);
    if (!is_value) rotate(v, load_turn<COUNT>(h.k_cos, h.k_sin, angle, turned, lane), turned, lane);
    store_vector<COUNT, DIM>(h.store, is_value, row, place, head - (is_value ? values : keys), lane, v);
  }
}
