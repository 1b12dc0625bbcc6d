// Causal attention over stored bytes with tensor cores: what both kinds of blocks share.
//
// Compiled for one head width (HD), one 16-bit format of operands (BF16), one precision, one class of
// stored elements per side (K_CLASS, V_CLASS), with native first tokens or without (SINK). With EXACT
// set, queries and weights enter the tensor cores as a sum of two 16-bit numbers, which leaves no more
// than f32's own rounding; without, they are rounded to 16 bits once. Stored elements become 16-bit
// operands exactly (what groups hold is defined as such a number); other scales are applied in f32.
//
// A sequence is cut into spans of SPAN tokens and those into tiles of TILE tokens, at fixed
// positions. A span is summed tile after tile by online softmax, spans are merged in order. The
// operations behind a query row's result, and their order, follow from its own position alone:
// every kind of block adds the same products in the same order, and a masked token adds exactly
// zero. Of a layer with a window, tiles before what any row of a block sees are left out, as are spans
// before what a row sees where its spans are merged. So decoding and prompts, alone or side by side, give the same bits. Plain weights are
// summed apart for each quarter of a tile, as blocks of few rows split them over their warps.
//
// A tile's dynamic value scales enter as follows: a weight times its value's scale is
// 2^(score + log2(scale) - largest), so the 16-bit weights use their whole range whatever the
// scales; the sum of plain weights divides the scale out again. A vector of zeros is stored with
// the negative scale ZEROS_SCALE: it has none to speak of, and takes part at one far below any other's,
// so that it does not decide which of the others' weights 16 bits can hold.
//
// Native first tokens have the scale 1. So that the others' scales, fixed ones included, do not lie so
// far below it that 16 bits no longer hold their weights, staged values take over the power of two in
// their scales: what is left of a usual scale lies between 1 and 2.

#define HDP ((HD + 15) / 16 * 16)
#define TILE 64
#define SPAN 1024
#define TILES (SPAN / TILE)
#define LOWEST (-1e30f)
#define PARTS (EXACT + 1)
#define OPERAND (BF16 ? FORMAT_BF16 : FORMAT_F16)

// Classes of stored elements.
#define NATIVE 0
#define FLOAT8 1
#define INTEGER8 2
#define INTEGER4 3       // groups of 32
#define INTEGER4_WIDE 4  // groups of 64
// Sides whose elements become operands tile by tile before they are multiplied: those in groups, and
// quantised ones where the first tokens are native (SINK).
#define K_STAGED (K_CLASS >= INTEGER4 || (SINK && K_CLASS != NATIVE))
#define V_STAGED (V_CLASS >= INTEGER4 || (SINK && V_CLASS != NATIVE))
// One-byte elements that are widened on their way to the tensor cores.
#define K_BYTES (K_CLASS != NATIVE && !K_STAGED)
#define V_BYTES (V_CLASS != NATIVE && !V_STAGED)
// Whether vectors have scales that are applied in f32.
#define SCALED(class) ((class) == FLOAT8 || (class) == INTEGER8)
// Stored bytes of a head vector.
#define WIDTH_OF(class) ((class) == NATIVE ? HD * 2 : (class) == INTEGER4 ? HD / 2 + HD / 32 * 4 : (class) == INTEGER4_WIDE ? HD / 2 + HD / 64 * 4 : HD)

// A block of members and one of its spans: slot, first member, members, first long row or -1,
// largest position, span, first position that any member sees.
struct Job { int slot, first, members, long_row, last, span, begin, unused; };
// The first token of a job's tiles.
DEV int first_token(const Job& job) {
  int span = job.span * SPAN, begin = job.begin / TILE * TILE;
  return begin > span ? begin : span;
}

struct Attention {
  const void* q; void* out;              // [rows, heads * HD], in q_format and out_format
  float* partial; float2* partial_sums;  // [long rows][heads][spans][HD], and (largest, sum)
  const Page* table; int max_pages;      // [slots][max_pages]
  const int2* rows;                      // slot, position
  const int* members;                    // rows of the tensor, block after block
  const Job* jobs;
  u64 sink, sink_bytes;                  // [slots] of sink_bytes: the first sink_tokens tokens
  int heads, kv_heads, spans, q_format, out_format;
  int window;                            // tokens that a query sees, its own included; at most 2^30
  int sink_tokens;
  float factor;                          // log2(e) / what scores are divided by
  Side k, v;
};

DEV u16 to_operand(float x) { return f32_to_half(OPERAND, x); }
DEV float from_operand(u16 h) { return half_to_f32(OPERAND, h); }
// Two operands times two.
DEV u32 times(u32 x, u32 y) {
  u32 d;
#if BF16
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(0x80008000u));
#else
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
#endif
  return d;
}
// Two numbers as operands, `low` in the lower half.
DEV u32 to_operands(float low, float high) {
  u32 d;
#if BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#endif
  return d;
}
// What rounding to operands left of two numbers.
DEV u32 to_rest(float low, float high, u32 rounded) {
  return to_operands(low - from_operand((u16)rounded), high - from_operand((u16)(rounded >> 16)));
}

// Four stored bytes as two pairs of operands, exactly: bytes 0 and 1, bytes 2 and 3.
template <int CLASS> DEV uint2 widen(int format, u32 b) {
  uint2 d;
  if (CLASS == INTEGER8) {
#if BF16
    d.x = to_operands((float)(signed char)b, (float)(signed char)(b >> 8));
    d.y = to_operands((float)(signed char)(b >> 16), (float)(signed char)(b >> 24));
#else
    // 1024 + u has u in its lowest bits; u = byte + 128.
    b ^= 0x80808080u;
    u32 offset = 0x64806480u;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d.x) : "r"(__byte_perm(b, 0x64646464u, 0x4140)), "r"(offset));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d.y) : "r"(__byte_perm(b, 0x64646464u, 0x4342)), "r"(offset));
#endif
    return d;
  }
  bool e4m3 = format == FORMAT_E4M3;
#if BF16
  // bf16 has f32's exponent: move the fields of what is then the upper byte of a half, and multiply by
  // the difference of the biases.
  u32 bias = e4m3 ? 0x7b807b80u : 0x77807780u;  // 2^120, 2^112
  u32 fields = e4m3 ? 0x07f007f0u : 0x0fe00fe0u;
  int shift = e4m3 ? 4 : 3;
  u32 x = __byte_perm(b, 0, 0x1404), y = __byte_perm(b, 0, 0x3424);
  x = (x >> shift & fields) | (x & 0x80008000u);
  y = (y >> shift & fields) | (y & 0x80008000u);
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d.x) : "r"(x), "r"(bias), "r"(0x80008000u));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d.y) : "r"(y), "r"(bias), "r"(0x80008000u));
#elif __CUDA_ARCH__ >= 890
  if (e4m3)
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }" : "=r"(d.x), "=r"(d.y) : "r"(b));
  else {
    d.x = __byte_perm(b, 0, 0x1404);  // e5m2 is the upper half of an f16
    d.y = __byte_perm(b, 0, 0x3424);
  }
#else
  u32 x = __byte_perm(b, 0, 0x1404), y = __byte_perm(b, 0, 0x3424);
  if (e4m3) {
    x = (x & 0x80008000u) | (x & 0x7f007f00u) >> 1;
    y = (y & 0x80008000u) | (y & 0x7f007f00u) >> 1;
    u32 bias = 0x5c005c00u;  // 2^8
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(bias));
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(bias));
  }
  d.x = x; d.y = y;
#endif
  return d;
}

// Place of element d of a head vector among the terms of a score. Where keys are bytes, a lane's
// four terms of 16 are four neighbouring elements: so it reads them at once.
DEV int term(int d) {
  if (!K_BYTES) return d;
  int c = d % 16 / 4, r = d % 4;
  return d / 16 * 16 + 2 * c + (r & 1) + (r & 2) * 4;
}

// 16 stored key bytes as operands in the order of terms: 8 and 8.
DEV void widen_terms(int format, uint4 b, uint4& first, uint4& second) {
  uint2 x = widen<K_CLASS>(format, b.x), y = widen<K_CLASS>(format, b.y), z = widen<K_CLASS>(format, b.z), w = widen<K_CLASS>(format, b.w);
  first.x = x.x; first.y = y.x; first.z = z.x; first.w = w.x;
  second.x = x.y; second.y = y.y; second.z = z.y; second.w = w.y;
}
// 16 stored value bytes as operands.
DEV void widen_values(int format, uint4 b, uint4& first, uint4& second) {
  uint2 x = widen<V_CLASS>(format, b.x), y = widen<V_CLASS>(format, b.y), z = widen<V_CLASS>(format, b.z), w = widen<V_CLASS>(format, b.w);
  first.x = x.x; first.y = x.y; first.z = y.x; first.w = y.y;
  second.x = z.x; second.y = z.y; second.z = w.x; second.w = w.y;
}

// What a value scale adds to a score and what a weight is multiplied by to be a plain one, to about
// two units in the last place: errors of both cancel.
DEV float shift_of(float scale) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fabsf(scale))); return y; }
DEV float inverse_of(float scale) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fabsf(scale))); return y; }

// Scales of a tile: what a score is multiplied by, and the logarithm and inverse of value scales.
struct Scales { float key[TILE], shift[TILE], inverse[TILE]; };

// Scale of a token whose stored one, where there is any, is `stored`.
DEV float scale_at(const Attention& a, const Side& side, int token, float stored) {
  if (SINK && token < a.sink_tokens) return 1.f;
  return side.dynamic ? stored : SINK ? side.scale : 1.f;
}
// Exponent of a scale that staged elements take over, as far as they stay within 16 bits.
DEV int taken_over(int format, float scale) {
  int exponent = (int)(__float_as_uint(fabsf(scale)) >> 23) - 127, most = format == FORMAT_E4M3 ? 7 : format == FORMAT_INT8 ? 9 : 0;
  return max(-14, min(exponent, most));
}
DEV float power_of_two(int exponent) { return __uint_as_float((u32)(127 + exponent) << 23); }
// What is left of a value's scale for its weight.
DEV float value_scale_at(const Attention& a, int token, float stored) {
  float scale = scale_at(a, a.v, token, stored);
  if (!SINK || !SCALED(V_CLASS) || token < a.sink_tokens) return scale;
  return scale * power_of_two(-taken_over(a.v.format, scale));
}
DEV float fetch_scale(const Attention& a, const Side& side, const Page* pages, int head, int token, int last) {
  if (token > last) return 1.f;
  bool stored = side.dynamic && !(SINK && token < a.sink_tokens);
  return scale_at(a, side, token, stored ? ((const float*)(pages[token / PAGE].stored + side.scales))[head * PAGE + token % PAGE] : 1.f);
}
// What no token's scale holds.
DEV float unscaled(const Side& side) { return !SINK && side.format >= FORMAT_E4M3 && !side.dynamic ? side.scale : 1.f; }
// Whether scales differ from token to token.
DEV bool keys_change(const Attention& a) { return SCALED(K_CLASS) && (SINK || a.k.dynamic); }
DEV bool values_change(const Attention& a) { return SCALED(V_CLASS) && (SINK || a.v.dynamic); }
// One side's scale of a tile's token: threads 0 to 63 read and put those of keys, 64 to 127 those of
// values.
DEV float read_scale(const Attention& a, const Page* pages, int head, int token0, int last, int thread) {
  return fetch_scale(a, thread < TILE ? a.k : a.v, pages, head, token0 + thread % TILE, last);
}
DEV void put_scale(const Attention& a, Scales* to, int thread, float scale, int token0) {
  if (thread < TILE) {
    to->key[thread] = a.factor * (keys_change(a) ? fabsf(scale) : unscaled(a.k));
  } else {
    scale = value_scale_at(a, token0 + thread % TILE, scale);
    to->shift[thread % TILE] = values_change(a) ? shift_of(scale) : 0.f;
    to->inverse[thread % TILE] = values_change(a) ? inverse_of(scale) : 1.f;
  }
}

// Query heads that share a key/value head, as rows of a block stand: member after member.
struct Group {
  int size; u32 inverse;
  // Exact as long as row * size stays below 65536: blocks have at most 128 rows, and no group is larger.
  // Division takes several times as many instructions.
  DEV_MEMBER int member(int row) const { return (int)(row * inverse >> 16); }
};
DEV Group group_of_heads(const Attention& a) {
  Group g;
  g.size = a.heads / a.kv_heads;
  g.inverse = 65536u / g.size + 1;
  return g;
}

// Eight neighbouring elements of a query vector, from element `d` on; zeros beyond HD.
struct Eight { float x[8]; };
DEV Eight query(const Attention& a, i64 vector, int d) {
  Eight q;
  if (d >= HD) {
#pragma unroll
    for (int i = 0; i < 8; i++) q.x[i] = 0.f;
  } else if (a.q_format == FORMAT_F32) {
    const float4* from = (const float4*)((const float*)a.q + vector * HD + d);
    float4 low = from[0], high = from[1];
    q.x[0] = low.x; q.x[1] = low.y; q.x[2] = low.z; q.x[3] = low.w;
    q.x[4] = high.x; q.x[5] = high.y; q.x[6] = high.z; q.x[7] = high.w;
  } else {
    uint4 h = *(const uint4*)((const u16*)a.q + vector * HD + d);
    u32 pairs[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      q.x[2 * i] = half_to_f32(a.q_format, (u16)pairs[i]);
      q.x[2 * i + 1] = half_to_f32(a.q_format, (u16)(pairs[i] >> 16));
    }
  }
  return q;
}
// Puts eight query elements in the order of terms: `place` gives the address of a pair's first term.
template <class Place> DEV void put_query(const Eight& q, int d, const Place& place) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    u32 h = to_operands(q.x[i], q.x[i + 1]);
    *place(0, term(d + i)) = h;
    if (EXACT) *place(1, term(d + i)) = to_rest(q.x[i], q.x[i + 1], h);
  }
}
// The same where they are operands as they are.
template <class Place> DEV void put_operands(const uint4& h, int d, const Place& place) {
  *place(0, term(d)) = h.x; *place(0, term(d + 2)) = h.y; *place(0, term(d + 4)) = h.z; *place(0, term(d + 6)) = h.w;
}
// Queries of a block's `rows` rows, by `threads` threads.
template <int ROWS, int THREADS, class Place> DEV void put_queries(const Attention& a, const Job& job, int head, Group group, int first, int thread, const Place& place) {
  const int PIECES = HDP / 8;
  bool as_they_are = !EXACT && a.q_format == OPERAND;
#pragma unroll 4
  for (int i = thread; i < ROWS * PIECES; i += THREADS) {
    int r = i / PIECES, d = i % PIECES * 8, member = group.member(first + r);
    auto at = [&](int part, int t) { return place(part, r, t); };
    bool is_row = member < job.members;
    i64 vector = 0;
    if (is_row) vector = (i64)a.members[job.first + member] * a.heads + head * group.size + (first + r) - member * group.size;
    if (as_they_are) {
      uint4 h;
      h.x = h.y = h.z = h.w = 0;
      if (is_row && d < HD) h = *(const uint4*)((const u16*)a.q + vector * HD + d);
      put_operands(h, d, at);
      continue;
    }
    Eight q;
    if (is_row) {
      q = query(a, vector, d);
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++) q.x[j] = 0.f;
    }
    put_query(q, d, at);
  }
}

// Sum of a row's plain weights: of this thread's quarters, then over the four lanes of the row.
DEV float lanes_sum(float x) {
  x += __shfl_xor_sync(WARP, x, 1);
  return x + __shfl_xor_sync(WARP, x, 2);
}
DEV float lanes_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(WARP, x, 1));
  return fmaxf(x, __shfl_xor_sync(WARP, x, 2));
}

// 2^x to two units in the last place; below 2^-126 zero. This is exp2f without its steps for
// subnormal results, which no sum of weights (of which the largest is 1) can feel.
DEV float power(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Merges a span into those before it.
struct Merge { float largest, before, own; };
DEV Merge merge(float largest, float next) {
  Merge m;
  m.largest = fmaxf(largest, next);
  m.before = power(largest - m.largest);
  m.own = power(next - m.largest);
  return m;
}
DEV float merged(Merge m, float before, float own) { return fmaf(before, m.before, own * m.own); }

// The first span of a row that sees tokens up to `see`.
DEV int first_span(const Attention& a, int see) { return see < a.window ? 0 : (see + 1 - a.window) / SPAN; }

// What a row's sums come to, for one span and for merged ones: `inverse` is one over its weights.
DEV float finish(float sum, float inverse, float scale) { return fmaf(sum * inverse, scale, 0.f); }

DEV void put2(const Attention& a, i64 at, float x, float y) {
  if (a.out_format == FORMAT_F32) {
    float2 v;
    v.x = x; v.y = y;
    *(float2*)((float*)a.out + at) = v;
  } else {
    *(u32*)((u16*)a.out + at) = pack2(a.out_format, x, y);
  }
}

// Merges the spans of long rows in order; grid: blocks' long rows, heads. `long_rows` are rows of
// the tensor.
KERNEL(128) merge_spans(Attention a, const int* long_rows) {
  int row = long_rows[blockIdx.x], count = a.rows[row].y / SPAN + 1, first = first_span(a, a.rows[row].y);
  i64 at = ((i64)blockIdx.x * a.heads + blockIdx.y) * a.spans;
  for (int d = threadIdx.x; d < HD; d += 128) {
    float2 l = a.partial_sums[at + first];
    float sum = a.partial[(at + first) * HD + d], weights = l.y, largest = l.x;
    for (int i = first + 1; i < count; i++) {
      l = a.partial_sums[at + i];
      Merge m = merge(largest, l.x);
      largest = m.largest;
      weights = merged(m, weights, l.y);
      sum = merged(m, sum, a.partial[(at + i) * HD + d]);
    }
    put(a.out, a.out_format, ((i64)row * a.heads + blockIdx.y) * HD + d, finish(sum, 1.f / weights, unscaled(a.v)));
  }
}
