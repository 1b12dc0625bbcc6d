// Causal attention over stored bytes with tensor cores.
//
// Compiled for one head width (HD), one 16-bit format of operands (BF16) and one precision: with
// EXACT set, queries and weights enter the tensor cores as a sum of two 16-bit numbers, which
// leaves no more than f32's own rounding; without, they are rounded to 16 bits once. Stored bytes
// become 16-bit operands exactly; scales are applied in f32.
//
// A sequence is cut into spans of SPAN tokens and those into tiles of TILE tokens, at fixed
// positions. A span is summed tile after tile by online softmax, spans are merged in order. The
// operations behind a query row's result, and their order, follow from its own position alone:
// blocks of either shape below hold the same fragments in the same lanes, and a masked token adds
// exactly zero. So decoding and prompts, alone or side by side, give the same bits.
//
// A tile's dynamic value scales enter as follows: a weight times its value's scale is
// 2^(score + log2(scale) - largest), so the 16-bit weights use their whole range whatever the
// scales; the sum of plain weights divides the scale out again.

#define HDP ((HD + 15) / 16 * 16)
#define TILE 64
#define SPAN 1024
#define STRIDE (HDP + 8)                 // halves per row of a tile: rows fall on different banks
#define TILE_BYTES (TILE * STRIDE * 2)
#define RAW_BYTES (TILE * HD)            // a tile of one-byte elements as stored
#define LOWEST (-1e30f)
// Blocks of prompts that should share a multiprocessor: more hide each other's waits, as long as
// registers suffice.
#define MANY_BLOCKS (HD <= 128 && !EXACT ? 2 : 1)
#define PARTS (EXACT + 1)
#define OPERAND (BF16 ? FORMAT_BF16 : FORMAT_F16)

// A block of members and one of its spans: slot, first member, members, first long row or -1,
// largest position, span.
struct Job { int slot, first, members, long_row, last, span, unused[2]; };

struct Attention {
  const float* q; void* out;             // [rows, heads * HD], out in out_format
  float* partial; float2* partial_sums;  // [long rows][heads][spans][HD], and (largest, sum)
  const Page* table; int max_pages;      // [slots][max_pages]
  const int2* rows;                      // slot, position
  const int* members;                    // rows of the tensor, block after block
  const Job* jobs;
  int heads, kv_heads, spans, out_format;
  float factor;                          // log2(e) / sqrt(HD)
  Side k, v;
};

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void load_matrices(u32 r[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}
DEV void load_transposed(u32 r[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}
// c += a b: 16 rows, 8 columns, 16 terms, sums in f32.
DEV void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Copies up to 16 bytes to shared memory; the rest of the 16 becomes zero.
DEV void copy_async(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
DEV void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEV void copies_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

DEV u16 to_operand(float x) { return f32_to_half(OPERAND, x); }
DEV float from_operand(u16 h) { return half_to_f32(OPERAND, h); }
DEV u32 pair(u16 low, u16 high) { return (u32)low | (u32)high << 16; }

// Two stored bytes (in the low bytes of `b`'s halves) as operands, exactly.
DEV u32 widen(int format, u32 b) {
  if (format == FORMAT_INT8)
    return pair(to_operand((float)(signed char)(b & 0xffu)), to_operand((float)(signed char)(b >> 16)));
#if BF16
  // bf16 has f32's exponent: move the fields, then multiply by the difference of the biases.
  u32 sign = (b & 0x00800080u) << 8, d;
  u32 rest = format == FORMAT_E4M3 ? (b & 0x007f007fu) << 4 : (b & 0x007f007fu) << 5;
  u32 bias = format == FORMAT_E4M3 ? 0x7b807b80u : 0x77807780u;  // 2^120, 2^112
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(rest | sign), "r"(bias), "r"(0x80008000u));
  return d;
#else
  if (format == FORMAT_E5M2) return b << 8;  // the upper half of an f16
  u32 sign = (b & 0x00800080u) << 8, rest = (b & 0x007f007fu) << 7, d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(rest | sign), "r"(0x5c005c00u));  // 2^8
  return d;
#endif
}

// Starts to copy one side of the tile at `token0` as it is stored, WIDTH bytes per vector; what lies
// beyond `last` becomes zero: whatever bytes are there never enter arithmetic.
template <int THREADS, int WIDTH> DEV void fetch_vectors(u32 elements, const Page* pages, int head, int token0, int last, char* to) {
#pragma unroll 2
  for (int i = threadIdx.x; i < TILE / PAGE * WIDTH; i += THREADS) {
    int page = i / WIDTH, c = i % WIDTH;                 // 16-byte piece c of a page's head
    int left = (last + 1 - token0 - page * PAGE) * WIDTH - c * 16;
    left = left < 0 ? 0 : left > 16 ? 16 : left;
    int number = token0 / PAGE + (left ? page : 0);      // a page that exists, also where nothing is read
    u64 from = pages[number].stored + elements + (u64)head * PAGE * WIDTH + c * 16;
    char* at = WIDTH == HD ? to + page * PAGE * HD + c * 16
                           : to + (page * PAGE + c / (HD / 8)) * STRIDE * 2 + (c % (HD / 8)) * 16;
    copy_async(at, (const void*)from, left);
  }
}
template <int THREADS> DEV void fetch(const Side& side, const Page* pages, int head, int token0, int last, char* to) {
  if (side.format >= FORMAT_E4M3) fetch_vectors<THREADS, HD>(side.elements, pages, head, token0, last, to);
  else fetch_vectors<THREADS, 2 * HD>(side.elements, pages, head, token0, last, to);
}

// Stored bytes of a tile become operands.
template <int THREADS> DEV void convert(int format, const char* raw, char* tile) {
#pragma unroll 2
  for (int i = threadIdx.x; i < TILE * (HD / 8); i += THREADS) {
    int token = i / (HD / 8), c = i % (HD / 8);
    uint2 b = *(const uint2*)(raw + token * HD + c * 8);
    uint4 h;
    h.x = widen(format, __byte_perm(b.x, 0, 0x4140)); h.y = widen(format, __byte_perm(b.x, 0, 0x4342));
    h.z = widen(format, __byte_perm(b.y, 0, 0x4140)); h.w = widen(format, __byte_perm(b.y, 0, 0x4342));
    *(uint4*)(tile + token * STRIDE * 2 + c * 16) = h;
  }
}

// Scales of a tile: what a score is multiplied by, and the logarithm and inverse of value scales.
struct Scales { float key[TILE], shift[TILE], inverse[TILE]; };

DEV float fetch_scale(const Side& side, const Page* pages, int head, int token, int last) {
  if (!side.dynamic || token > last) return 1.f;
  return ((const float*)(pages[token / PAGE].stored + side.scales))[head * PAGE + token % PAGE];
}

DEV float unscaled(const Side& side) { return side.format >= FORMAT_E4M3 && !side.dynamic ? side.scale : 1.f; }

// What a row's sums come to, for one span and for merged ones.
DEV float finish(float sum, float weights, float scale) { return fmaf(sum / weights, scale, 0.f); }

// Query rows [16 * DOWN] of one key/value head over one span. DOWN warps take 16 rows each; ACROSS
// warps share rows, each with a share of the tokens (scores) and of the elements (sums).
template <int DOWN, int ACROSS> DEV void attend_span(const Attention& a) {
  const int THREADS = 32 * DOWN * ACROSS, ROWS = 16 * DOWN;
  extern __shared__ uint4 memory[];
  char* queries = (char*)memory;                          // [PARTS][ROWS][STRIDE] halves
  const int QUERY_BYTES = PARTS * ROWS * STRIDE * 2, EXCHANGE_BYTES = ROWS * (TILE + 4) * 4;
  const bool KEPT = ACROSS > 1 && HDP <= 128;             // queries stay in registers
  char* keys = queries + (KEPT && EXCHANGE_BYTES > QUERY_BYTES ? EXCHANGE_BYTES : QUERY_BYTES);  // two tiles, or two raw ones and a tile
  char* values = keys + 2 * TILE_BYTES;
  Scales* scales = (Scales*)(values + 2 * TILE_BYTES);
  // Scores that warps exchange, [ROWS][TILE + 4] where ACROSS > 1, in the place of kept queries.
  float* exchange = (float*)(KEPT ? queries : (char*)(scales + 1));

  const Job job = a.jobs[blockIdx.x];
  int head = blockIdx.y, group = a.heads / a.kv_heads, last = job.last;
  const Page* pages = a.table + (i64)job.slot * a.max_pages;
  int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
  int down = warp / ACROSS, across = warp % ACROSS;
  bool key_bytes = a.k.format >= FORMAT_E4M3, value_bytes = a.v.format >= FORMAT_E4M3;
  bool changing = a.k.dynamic || a.v.dynamic;

  int tile0 = job.span * (SPAN / TILE), tiles = last / TILE + 1;
  if (tiles > tile0 + SPAN / TILE) tiles = tile0 + SPAN / TILE;

  if (HD < HDP)
    for (int i = thread; i < 4 * TILE; i += THREADS)
      for (int d = HD; d < HDP; d++) {
        ((u16*)(keys + (i / TILE) * TILE_BYTES))[(i % TILE) * STRIDE + d] = 0;
        if (key_bytes || value_bytes) {
          ((u16*)(keys + 2 * RAW_BYTES))[(i % TILE) * STRIDE + d] = 0;
          ((u16*)(values + 2 * RAW_BYTES))[(i % TILE) * STRIDE + d] = 0;
        }
      }
  if (HD < HDP) __syncthreads();
  fetch<THREADS>(a.k, pages, head, tile0 * TILE, last, keys);
  fetch<THREADS>(a.v, pages, head, tile0 * TILE, last, values);
  copies_end();
  float key_scale = 1.f, value_scale = 1.f;
  if (thread < TILE) {
    key_scale = fetch_scale(a.k, pages, head, tile0 * TILE + thread, last);
    value_scale = fetch_scale(a.v, pages, head, tile0 * TILE + thread, last);
  }
  float constant_key = a.factor * unscaled(a.k);
  for (int i = thread; i < ROWS * HDP; i += THREADS) {
    int row = i / HDP, d = i % HDP, member = row / group;
    float x = 0.f;
    if (member < job.members && d < HD)
      x = a.q[((i64)a.members[job.first + member] * a.heads + head * group + row % group) * HD + d];
    u16 h = to_operand(x);
    ((u16*)queries)[row * STRIDE + d] = h;
    if (EXACT) ((u16*)queries)[(ROWS + row) * STRIDE + d] = to_operand(x - from_operand(h));
  }

  u32 kept[PARTS][KEPT ? HDP / 16 : 1][4];
  if (KEPT) {
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
      for (int kk = 0; kk < (KEPT ? HDP / 16 : 1); kk++)
        load_matrices(kept[part][kk], queries + ((part * ROWS + down * 16 + (lane & 15)) * STRIDE + kk * 16 + (lane >> 4) * 8) * 2);
  }

  // This thread's two rows of every fragment, and the last token that each may see.
  int row0 = down * 16 + (lane >> 2), row1 = row0 + 8;
  int member0 = row0 / group, member1 = row1 / group;
  int see0 = member0 < job.members ? a.rows[a.members[job.first + member0]].y : last;
  int see1 = member1 < job.members ? a.rows[a.members[job.first + member1]].y : last;
  const int BLOCKS = (HDP / 16 + ACROSS - 1) / ACROSS;   // 16 elements each
  float sums[BLOCKS][2][4];
#pragma unroll
  for (int i = 0; i < BLOCKS; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) sums[i][j >> 2][j & 3] = 0.f;
  float largest0 = LOWEST, largest1 = LOWEST, weights0 = 0.f, weights1 = 0.f;

  for (int tile = tile0; tile < tiles; tile++) {
    int stage = (tile - tile0) & 1;
    copies_wait();
    __syncthreads();
    const char* tile_keys = keys + (key_bytes ? 2 * RAW_BYTES : stage * TILE_BYTES);
    const char* tile_values = values + (value_bytes ? 2 * RAW_BYTES : stage * TILE_BYTES);
    if (tile + 1 < tiles) {
      fetch<THREADS>(a.k, pages, head, (tile + 1) * TILE, last, keys + (stage ^ 1) * (key_bytes ? RAW_BYTES : TILE_BYTES));
      fetch<THREADS>(a.v, pages, head, (tile + 1) * TILE, last, values + (stage ^ 1) * (value_bytes ? RAW_BYTES : TILE_BYTES));
      copies_end();
    }
    if (key_bytes) convert<THREADS>(a.k.format, keys + stage * RAW_BYTES, keys + 2 * RAW_BYTES);
    if (value_bytes) convert<THREADS>(a.v.format, values + stage * RAW_BYTES, values + 2 * RAW_BYTES);
    if (changing && thread < TILE) {
      scales->key[thread] = a.factor * (a.k.dynamic ? key_scale : unscaled(a.k));
      scales->shift[thread] = a.v.dynamic ? log2f(value_scale) : 0.f;
      scales->inverse[thread] = a.v.dynamic ? 1.f / value_scale : 1.f;
      if (tile + 1 < tiles) {
        key_scale = fetch_scale(a.k, pages, head, (tile + 1) * TILE + thread, last);
        value_scale = fetch_scale(a.v, pages, head, (tile + 1) * TILE + thread, last);
      }
    }
    if (key_bytes || value_bytes) __syncthreads();

    float s[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] = 0.f;
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--)
#pragma unroll
      for (int kk = 0; kk < HDP / 16; kk++) {
        u32 q[4], k[4];
        if (KEPT) {
#pragma unroll
          for (int i = 0; i < 4; i++) q[i] = kept[part][KEPT ? kk : 0][i];
        } else {
          load_matrices(q, queries + ((part * ROWS + down * 16 + (lane & 15)) * STRIDE + kk * 16 + (lane >> 4) * 8) * 2);
        }
#pragma unroll
        for (int np = 0; np < 4; np++) {
          if (ACROSS > 1 && np % ACROSS != across) continue;
          load_matrices(k, tile_keys + ((np * 16 + (lane & 7) + ((lane >> 4) << 3)) * STRIDE + kk * 16 + ((lane >> 3) & 1) * 8) * 2);
          multiply(s[np * 2], q, k[0], k[1]);
          multiply(s[np * 2 + 1], q, k[2], k[3]);
        }
      }
    if (ACROSS > 1) {
#pragma unroll
      for (int n = 0; n < 8; n++)
        if ((n >> 1) % ACROSS == across) {
          float* to = exchange + row0 * (TILE + 4) + n * 8 + (lane & 3) * 2;
          to[0] = s[n][0]; to[1] = s[n][1];
          to[8 * (TILE + 4)] = s[n][2]; to[8 * (TILE + 4) + 1] = s[n][3];
        }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < 8; n++) {
        const float* from = exchange + row0 * (TILE + 4) + n * 8 + (lane & 3) * 2;
        s[n][0] = from[0]; s[n][1] = from[1];
        s[n][2] = from[8 * (TILE + 4)]; s[n][3] = from[8 * (TILE + 4) + 1];
      }
    }

    float top0 = largest0, top1 = largest1;
    int beyond0 = see0 - tile * TILE, beyond1 = see1 - tile * TILE;  // last visible token of the tile
    bool masked = __any_sync(WARP, beyond0 < TILE - 1 || beyond1 < TILE - 1);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int t = n * 8 + (lane & 3) * 2 + j;
        float key = changing ? scales->key[t] : constant_key, shift = changing ? scales->shift[t] : 0.f;
        s[n][j] = fmaf(s[n][j], key, shift);
        s[n][j + 2] = fmaf(s[n][j + 2], key, shift);
        if (masked) {
          if (t > beyond0) s[n][j] = NEG_INF;
          if (t > beyond1) s[n][j + 2] = NEG_INF;
        }
        top0 = fmaxf(top0, s[n][j]);
        top1 = fmaxf(top1, s[n][j + 2]);
      }
    top0 = fmaxf(top0, __shfl_xor_sync(WARP, top0, 1)); top0 = fmaxf(top0, __shfl_xor_sync(WARP, top0, 2));
    top1 = fmaxf(top1, __shfl_xor_sync(WARP, top1, 1)); top1 = fmaxf(top1, __shfl_xor_sync(WARP, top1, 2));
    float correct0 = exp2f(largest0 - top0), correct1 = exp2f(largest1 - top1);
    largest0 = top0; largest1 = top1;
    weights0 *= correct0; weights1 *= correct1;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float inverse = changing ? scales->inverse[n * 8 + (lane & 3) * 2 + j] : 1.f;
        s[n][j] = exp2f(s[n][j] - top0);
        s[n][j + 2] = exp2f(s[n][j + 2] - top1);
        weights0 = fmaf(s[n][j], inverse, weights0);
        weights1 = fmaf(s[n][j + 2], inverse, weights1);
      }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        sums[i][j][0] *= correct0; sums[i][j][1] *= correct0;
        sums[i][j][2] *= correct1; sums[i][j][3] *= correct1;
      }
#pragma unroll
    for (int ks = 0; ks < 4; ks++) {
      u32 w[PARTS][4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float* p = &s[2 * ks + (j >> 1)][(j & 1) * 2];
        u16 low = to_operand(p[0]), high = to_operand(p[1]);
        w[0][j] = pair(low, high);
        if (EXACT) w[PARTS - 1][j] = pair(to_operand(p[0] - from_operand(low)), to_operand(p[1] - from_operand(high)));
      }
#pragma unroll
      for (int i = 0; i < BLOCKS; i++) {
        int b = i * ACROSS + across;
        if (HDP / 16 % ACROSS != 0 && b >= HDP / 16) continue;
        u32 v[4];
        load_transposed(v, tile_values + ((ks * 16 + (lane & 15)) * STRIDE + b * 16 + (lane >> 4) * 8) * 2);
        if (EXACT) {
          multiply(sums[i][0], w[PARTS - 1], v[0], v[1]);
          multiply(sums[i][1], w[PARTS - 1], v[2], v[3]);
        }
        multiply(sums[i][0], w[0], v[0], v[1]);
        multiply(sums[i][1], w[0], v[2], v[3]);
      }
    }
  }
  copies_wait();

  weights0 += __shfl_xor_sync(WARP, weights0, 1); weights0 += __shfl_xor_sync(WARP, weights0, 2);
  weights1 += __shfl_xor_sync(WARP, weights1, 1); weights1 += __shfl_xor_sync(WARP, weights1, 2);
  float scale = unscaled(a.v);
#pragma unroll
  for (int side = 0; side < 2; side++) {
    int row = side ? row1 : row0, member = side ? member1 : member0, see = side ? see1 : see0;
    if (member >= job.members || see / SPAN < job.span) continue;
    float weights = side ? weights1 : weights0;
    int q_head = head * group + row % group;
    i64 to = ((i64)a.members[job.first + member] * a.heads + q_head) * HD;
    bool whole = job.long_row < 0;
    if (!whole) {
      i64 at = ((i64)(job.long_row + member) * a.heads + q_head) * a.spans + job.span;
      to = at * HD;
      if (across == 0 && (lane & 3) == 0) {
        float2 l;
        l.x = side ? largest1 : largest0; l.y = weights;
        a.partial_sums[at] = l;
      }
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int d = (i * ACROSS + across) * 16 + j * 8 + (lane & 3) * 2;
        float2 x;
        x.x = sums[i][j][side * 2]; x.y = sums[i][j][side * 2 + 1];
        if (d >= HD) continue;
        if (!whole) {
          *(float2*)(a.partial + to + d) = x;
          continue;
        }
        x.x = finish(x.x, weights, scale); x.y = finish(x.y, weights, scale);
        if (a.out_format == FORMAT_F32) *(float2*)((float*)a.out + to + d) = x;
        else *(u32*)((u16*)a.out + to + d) = pair(f32_to_half(a.out_format, x.x), f32_to_half(a.out_format, x.y));
      }
  }
}

// Blocks of 16 query rows, four warps together: few rows, many sequences.
KERNEL(128) attend_few(Attention a) { attend_span<1, 4>(a); }
// Blocks of 16 * DOWN query rows, a warp for each 16: prompts.
extern "C" __global__ void __launch_bounds__(32 * DOWN_MANY, MANY_BLOCKS) attend_many(Attention a) { attend_span<DOWN_MANY, 1>(a); }

// Merges the spans of long rows in order; grid: blocks' long rows, heads. `long_rows` are rows of
// the tensor.
KERNEL(128) merge_spans(Attention a, const int* long_rows) {
  int row = long_rows[blockIdx.x], count = a.rows[row].y / SPAN + 1;
  i64 at = ((i64)blockIdx.x * a.heads + blockIdx.y) * a.spans;
  float top = LOWEST;
  for (int i = 0; i < count; i++) top = fmaxf(top, a.partial_sums[at + i].x);
  for (int d = threadIdx.x; d < HD; d += 128) {
    float sum = 0.f, weights = 0.f;
    for (int i = 0; i < count; i++) {
      float2 l = a.partial_sums[at + i];
      float c = exp2f(l.x - top);
      weights = fmaf(l.y, c, weights);
      sum = fmaf(a.partial[(at + i) * HD + d], c, sum);
    }
    put(a.out, a.out_format, ((i64)row * a.heads + blockIdx.y) * HD + d, finish(sum, weights, unscaled(a.v)));
  }
}
