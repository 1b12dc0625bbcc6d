// Writing keys and values of up to 256 elements into pages, and reading back what a slot stored.

KERNEL(256) round_queries(float* x, i64 vectors, int head_dim, int format) { round_vectors<2>(x, vectors, head_dim, format); }
KERNEL(256) store(Store s) { store_heads<2>(s); }

// Counters, extremes of dynamic scales and the largest element of one side of one layer.
struct Totals { u64 saturated; u64 changed; float scale_min; float scale_max; float absmax; float unused; };

struct Slot {
  const Page* table;      // the slot's pages of the first kind
  i64 per_kind;           // from there to those of the next one
  const int* kinds;       // [layers]
  const Side* sides;      // [layers][2]
  const int2* tokens;     // [layers], first position that is kept, and tokens that were stored
  const int2* shapes;     // [layers], heads and elements per head vector
  const Totals* past;     // [layers][2], of pages that were given back; null for none
  u64 sink;               // the slot's first tokens
  int native, sink_tokens;
};

DEV void atomic_min(float* to, float x) { atomicMin((int*)to, __float_as_int(x)); }
DEV void atomic_max(float* to, float x) { atomicMax((int*)to, __float_as_int(x)); }

// Counters of a quantised vector: changed elements, above them saturated ones. Its scales enter the
// extremes.
DEV u64 count_vector(const Side& side, const Page& page, int vector, int head_dim, float* low, float* high) {
  u32 count = ((const u32*)(page.counts + side.counts))[vector];
  if (side.format >= FORMAT_INT4) {
    const u8* from = (const u8*)(page.stored + side.elements) + (i64)vector * packed_bytes(side.format, head_dim);
    for (int g = 0; g < head_dim / group_of(side.format); g++) {
      float scale = f16_to_f32((u16)((const u32*)(from + head_dim / 2))[g]);
      atomic_min(low, scale);
      atomic_max(high, scale);
    }
  } else if (side.dynamic) {
    float scale = ((const float*)(page.stored + side.scales))[vector];
    if (scale < 0.f) scale = 1.f;
    atomic_min(low, scale);
    atomic_max(high, scale);
  }
  return (u64)(count & 0xffffu) | (u64)(count >> 16) << 32;
}

// Magnitude of element d of a head of a stored token, decoded; `sink` are the slot's first tokens.
DEV float magnitude_of(const Side& side, const Page& page, u64 sink, int sink_tokens, int native, int position, int2 shape, int head, int d) {
  int vector = head * PAGE + position % PAGE;
  i64 at = (i64)vector * shape.y + d;
  if (position < sink_tokens && side.format >= FORMAT_E4M3) {
    const u16* from = (const u16*)(sink + side.sink) + ((i64)position * shape.x + head) * shape.y;
    return fabsf(half_to_f32(native, from[d]));
  }
  if (side.format >= FORMAT_INT4) {
    const u8* from = (const u8*)(page.stored + side.elements) + (i64)vector * packed_bytes(side.format, shape.y);
    u32 parameters = ((const u32*)(from + shape.y / 2))[d / group_of(side.format)];
    u32 code = from[d / 2] >> d % 2 * 4 & 15;
    float exact = int4_value(code, f16_to_f32((u16)parameters), f16_to_f32((u16)(parameters >> 16)));
    return fabsf(half_to_f32(native, f32_to_half(native, exact)));
  }
  if (side.format < FORMAT_E4M3) return fabsf(half_to_f32(side.format, ((const u16*)(page.stored + side.elements))[at]));
  float scale = side.dynamic ? ((const float*)(page.stored + side.scales))[vector] : side.scale;
  return fabsf(decode(side.format, ((const u8*)(page.stored + side.elements))[at]) * scale);
}

// Counters and extremes of dynamic scales per layer and side; all are order-independent. Scales
// are positive, so they order as integers do. grid: layers * 2.
KERNEL(256) slot_totals(Slot s, Totals* out) {
  __shared__ u64 saturated, changed;
  __shared__ float low, high;
  if (threadIdx.x == 0) { saturated = 0; changed = 0; low = __int_as_float(0x7f800000); high = 0.f; }
  __syncthreads();
  const Side side = s.sides[blockIdx.x];
  int layer = blockIdx.x / 2, first = s.tokens[layer].x;
  int2 shape = s.shapes[layer];
  const Page* table = s.table + s.kinds[layer] * s.per_kind;
  i64 vectors = (i64)(s.tokens[layer].y - first) * shape.x;
  u64 mine = 0;
  if (side.format >= FORMAT_E4M3)
    for (i64 i = threadIdx.x; i < vectors; i += 256) {
      int position = first + (int)(i / shape.x), vector = (int)(i % shape.x) * PAGE + position % PAGE;
      if (position < s.sink_tokens) continue;
      mine += count_vector(side, table[position / PAGE], vector, shape.y, &low, &high);
    }
  atomicAdd(&changed, mine & 0xffffffffull);
  atomicAdd(&saturated, mine >> 32);
  __syncthreads();
  if (threadIdx.x == 0) {
    Totals t;
    t.saturated = saturated; t.changed = changed; t.scale_min = low; t.scale_max = high; t.absmax = 0.f; t.unused = 0.f;
    if (s.past) {
      Totals past = s.past[blockIdx.x];
      t.saturated += past.saturated; t.changed += past.changed;
      t.scale_min = fminf(t.scale_min, past.scale_min); t.scale_max = fmaxf(t.scale_max, past.scale_max);
    }
    out[blockIdx.x] = t;
  }
}

// Largest absolute stored element per layer and side, decoded; `out` starts as zeros.
// grid: layers * 2, chunks of tokens.
KERNEL(256) slot_absmax(Slot s, float* out) {
  const Side side = s.sides[blockIdx.x];
  int layer = blockIdx.x / 2, tokens = s.tokens[layer].y;
  int2 shape = s.shapes[layer];
  const Page* table = s.table + s.kinds[layer] * s.per_kind;
  float largest = s.past && blockIdx.y == 0 ? s.past[blockIdx.x].absmax : 0.f;
  for (int position = s.tokens[layer].x + blockIdx.y; position < tokens; position += gridDim.y) {
    Page page = table[position / PAGE];
    for (int i = threadIdx.x; i < shape.x * shape.y; i += 256)
      largest = fmaxf(largest, magnitude_of(side, page, s.sink, s.sink_tokens, s.native, position, shape, i / shape.y, i % shape.y));
  }
  largest = warp_max(largest);
  if ((threadIdx.x & 31) == 0) atomic_max(&out[blockIdx.x], largest);
}

// A page that a slot gives back, and its first position.
struct PastPage { Page page; int slot, first; };

struct Past {
  const PastPage* pages;
  const int* layers;      // of the pages' kind
  const Side* sides;      // [all layers][2]
  const int2* shapes;     // [all layers]
  Totals* past;           // [slots][all layers][2]
  u64 sink, sink_bytes;   // [slots] of sink_bytes
  int all_layers, native, sink_tokens;
};

// Adds full pages to what their slots gave back. grid: pages, layers of the kind * 2.
KERNEL(256) sum_up_pages(Past p) {
  __shared__ u64 saturated, changed;
  __shared__ float low, high, largest;
  if (threadIdx.x == 0) { saturated = 0; changed = 0; low = __int_as_float(0x7f800000); high = 0.f; largest = 0.f; }
  __syncthreads();
  const PastPage own = p.pages[blockIdx.x];
  int layer = p.layers[blockIdx.y / 2], at = layer * 2 + (blockIdx.y & 1);
  const Side side = p.sides[at];
  int2 shape = p.shapes[layer];
  u64 mine = 0;
  if (side.format >= FORMAT_E4M3)
    for (int vector = threadIdx.x; vector < shape.x * PAGE; vector += 256)
      if (own.first + vector % PAGE >= p.sink_tokens) mine += count_vector(side, own.page, vector, shape.y, &low, &high);
  atomicAdd(&changed, mine & 0xffffffffull);
  atomicAdd(&saturated, mine >> 32);
  u64 sink = p.sink + own.slot * p.sink_bytes;
  float own_largest = 0.f;
  for (int i = threadIdx.x; i < PAGE * shape.x * shape.y; i += 256) {
    int token = i / (shape.x * shape.y), rest = i % (shape.x * shape.y);
    own_largest = fmaxf(own_largest, magnitude_of(side, own.page, sink, p.sink_tokens, p.native, own.first + token, shape, rest / shape.y, rest % shape.y));
  }
  own_largest = warp_max(own_largest);
  if ((threadIdx.x & 31) == 0) atomic_max(&largest, own_largest);
  __syncthreads();
  if (threadIdx.x == 0) {
    Totals* to = p.past + (i64)own.slot * p.all_layers * 2 + at;
    atomicAdd(&to->saturated, saturated);
    atomicAdd(&to->changed, changed);
    atomic_min(&to->scale_min, low);
    atomic_max(&to->scale_max, high);
    atomic_max(&to->absmax, largest);
  }
}
