// Blocks of 128 query rows of one key/value head over all of their spans, for compute capability
// 9.0: two warpgroups compute with asynchronous tensor-core instructions (wgmma), a third copies and
// widens tiles ahead of them. The same products in the same order as in the other blocks: that the
// two kinds of instructions round alike on the device at hand is checked before this one is used.

#define GROUP_ROWS 64
#define COMPUTING 2                                    // warpgroups
#define STAGES 3
#define FULL_ARRIVALS (((!K_BYTES || !V_BYTES) + (K_BYTES || V_BYTES)) * 128)  // of a stage: what was copied, what was stored
#define CHUNKS (HD / 64)                               // 64 elements of 128 bytes: rows of a swizzled tile
#define CHUNK_BYTES (TILE * 128)
#define OPERAND_BYTES (CHUNKS * CHUNK_BYTES)           // a tile of 64 rows as operands
// Together no more than the 168 per thread that the kernel starts with, or it waits for ever.
#define COPYING_REGISTERS 88
#define COMPUTING_REGISTERS 208
static_assert(COPYING_REGISTERS + COMPUTING * COMPUTING_REGISTERS <= 168 * (COMPUTING + 1), "registers of a block");

DEV void barrier_init(u64* b, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(b)), "r"(count) : "memory"); }
DEV void barrier_arrive(u64* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory"); }
// Arrives once the copies that this thread started are there.
DEV void barrier_arrive_copied(u64* b) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(shared_address(b)) : "memory"); }
DEV void barrier_wait(u64* b, u32 parity) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra WAIT; DONE: }"
    :: "r"(shared_address(b)), "r"(parity) : "memory");
}
DEV void shared_for_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Byte of half `d` of row `r` in a tile whose 16-byte units are swizzled over 128 bytes.
DEV int swizzled(int r, int d) { return d / 64 * CHUNK_BYTES + r * 128 + ((d / 8 % 8) ^ (r & 7)) * 16 + d % 8 * 2; }

// Descriptor of operands at a shared address: 128-byte swizzle, 8 rows in 1024 bytes, chunks of 64
// elements CHUNK_BYTES apart (where rows are terms; ignored otherwise).
DEV u64 descriptor(u32 address) {
  return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)(CHUNK_BYTES >> 4) << 16 | (u64)((address & 0x3ffffu) >> 4);
}
DEV void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEV void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory"); }
// Keeps the compiler from moving what touches `x` over this point.
template <int N> DEV void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]) :: "memory");
}

#if BF16
#define WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "
#else
#define WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 "
#endif
#define OUT8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define R32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define R64 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// d = q k (first) or d += q k: 64 rows, 64 tokens, 16 terms.
DEV void score(float (&d)[32], u64 q, u64 k, bool add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " WGMMA(64) R32 ", %32, %33, p, 1, 1, 0, 0; }"
    : OUT8(0), OUT8(8), OUT8(16), OUT8(24) : "l"(q), "l"(k), "r"((int)add));
}
// d += w v: 64 rows, HD elements, 16 tokens.
DEV void weigh(float (&d)[32], const u32 w[4], u64 v) {
  asm volatile("{ " WGMMA(64) R32 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1; }"
    : OUT8(0), OUT8(8), OUT8(16), OUT8(24) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v));
}
DEV void weigh(float (&d)[64], const u32 w[4], u64 v) {
  asm volatile("{ " WGMMA(128) R64 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1; }"
    : OUT8(0), OUT8(8), OUT8(16), OUT8(24), OUT8(32), OUT8(40), OUT8(48), OUT8(56)
    : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v));
}

// Addresses of a tile's pages. Beyond `last` the last page stands in: nothing is read from it.
struct Pages { u64 at[TILE / PAGE]; };
DEV Pages tile_pages(const Page* pages, int token0, int last) {
  Pages p;
#pragma unroll
  for (int i = 0; i < TILE / PAGE; i++) {
    int token = token0 + i * PAGE;
    p.at[i] = pages[(token < last ? token : last) / PAGE].stored;
  }
  return p;
}

// Copies a native side of a tile; what lies beyond `last` becomes zero.
DEV void copy_native(u32 elements, const Pages& pages, int head, int token0, int last, char* to, int thread) {
  const int TOKENS = 1024 / HD;                        // per step of all threads: 8 or 16, so that all are swizzled alike
  int own = thread / (HD / 8), c = thread % (HD / 8);
  u32 at = shared_address(to + swizzled(own, c * 8)), offset = elements + (head * PAGE + own) * (HD * 2) + c * 16;
  if (token0 + TILE - 1 <= last) {
#pragma unroll
    for (int token = 0; token < TILE; token += TOKENS)
      copy_piece<16>(at + token * 128, pages.at[token / PAGE] + (offset + token % PAGE * (HD * 2)));
  } else {
#pragma unroll
    for (int token = 0; token < TILE; token += TOKENS)
      copy_piece<16>(at + token * 128, pages.at[token / PAGE] + (offset + token % PAGE * (HD * 2)), token0 + own + token <= last ? 16 : 0);
  }
}
#define PIECES (TILE * HD / 16 / 128)                  // of 16 stored bytes, per copying thread
// Reads a side of a tile as it is stored.
DEV void read_bytes(u32 elements, const Pages& pages, int head, int token0, int last, uint4 (&to)[PIECES], int thread) {
  const int TOKENS = 2048 / HD;                        // per step of all threads: one page or two
  int own = thread / (HD / 16), c = thread % (HD / 16);
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    int token = j * TOKENS + own;
    u64 page = TOKENS == PAGE || own < PAGE ? pages.at[j * TOKENS / PAGE] : pages.at[(j * TOKENS / PAGE + 1) % (TILE / PAGE)];
    uint4 none;
    none.x = none.y = none.z = none.w = 0;
    to[j] = token0 + token <= last ? *(const uint4*)(page + elements + ((u32)(head * PAGE + token % PAGE) * HD + c * 16)) : none;
  }
}
// Widens what was read.
template <bool KEYS> DEV void put_bytes(int format, const uint4 (&from)[PIECES], char* to, int thread) {
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    int i = j * 128 + thread, token = i / (HD / 16), c = i % (HD / 16);
    uint4 first, second;
    if (KEYS) widen_terms(format, from[j], first, second);
    else widen_values(format, from[j], first, second);
    *(uint4*)(to + swizzled(token, c * 16)) = first;
    *(uint4*)(to + swizzled(token, c * 16 + 8)) = second;
  }
}

struct Stage { char keys[OPERAND_BYTES], values[OPERAND_BYTES]; };
struct Shared {
  Stage stages[STAGES];
  char queries[COMPUTING][OPERAND_BYTES];
  float merged[COMPUTING][HD / 2][128];                // sums of earlier spans, by thread
  Scales scales[STAGES];
  u64 full[STAGES], empty[STAGES];
};

// Place in the ring of stages, counted over all blocks of rows that this block takes.
struct Turn {
  u32 count;
  DEV_MEMBER int stage() const { return count % STAGES; }
  DEV_MEMBER u32 parity() const { return count / STAGES & 1; }
};

static_assert(sizeof(Shared) + 1024 <= PROMPT_SHARED, "shared memory of a block");

// Copies and widens the tiles of all spans.
DEV void copy_tiles(const Attention& a, const Job& job, int head, Shared* shared, Turn& turn, int thread) {
  const Page* pages = a.table + (i64)job.slot * a.max_pages;
  int last = job.last, tiles = last / TILE + 1, begin = job.begin / TILE;
  bool changing = a.k.dynamic || a.v.dynamic;
  uint4 keys[PIECES], values[PIECES];
  Pages own = tile_pages(pages, begin * TILE, last);
  if (K_BYTES) read_bytes(a.k.elements, own, head, begin * TILE, last, keys, thread);
  if (V_BYTES) read_bytes(a.v.elements, own, head, begin * TILE, last, values, thread);
  float scale_read = changing ? read_scale(a, pages, head, begin * TILE, last, thread) : 1.f;
  for (int tile = begin; tile < tiles; tile++, turn.count++) {
    int at = turn.stage();
    Stage* stage = &shared->stages[at];
    if (turn.count >= STAGES) barrier_wait(&shared->empty[at], turn.parity() ^ 1);
    if (!K_BYTES) copy_native(a.k.elements, own, head, tile * TILE, last, stage->keys, thread);
    if (!V_BYTES) copy_native(a.v.elements, own, head, tile * TILE, last, stage->values, thread);
    if (changing) {
      put_scale(a, &shared->scales[at], thread, scale_read, tile * TILE);
      scale_read = read_scale(a, pages, head, (tile + 1) * TILE, last, thread);
    }
    own = tile_pages(pages, (tile + 1) * TILE, last);
    if (K_BYTES) {
      put_bytes<true>(a.k.format, keys, stage->keys, thread);
      read_bytes(a.k.elements, own, head, (tile + 1) * TILE, last, keys, thread);
    }
    if (V_BYTES) {
      put_bytes<false>(a.v.format, values, stage->values, thread);
      read_bytes(a.v.elements, own, head, (tile + 1) * TILE, last, values, thread);
    }
    if (!K_BYTES || !V_BYTES) barrier_arrive_copied(&shared->full[at]);
    if (K_BYTES || V_BYTES) {                          // what this thread stored itself, scales included
      shared_for_tensor_cores();
      barrier_arrive(&shared->full[at]);
    }
  }
}

// Scores, weights and sums of 64 query rows.
DEV void compute(const Attention& a, const Job& job, int head, Shared* shared, Turn& turn, int own, int thread) {
  Group group = group_of_heads(a);
  int last = job.last, tiles = last / TILE + 1, begin = job.begin / TILE;
  bool changing = a.k.dynamic || a.v.dynamic;
  float constant_key = a.factor * unscaled(a.k);
  char* queries = shared->queries[own];
  asm volatile("bar.sync %0, 128;" :: "r"(own + 1) : "memory");  // queries before these were read
  put_queries<GROUP_ROWS, 128>(a, job, head, group, own * GROUP_ROWS, thread, [&](int, int r, int t) {
    return (u32*)(queries + swizzled(r, t));
  });
  shared_for_tensor_cores();
  asm volatile("bar.sync %0, 128;" :: "r"(own + 1) : "memory");

  int lane = thread & 31, row0 = own * GROUP_ROWS + (thread >> 5) * 16 + (lane >> 2), row1 = row0 + 8;
  int member0 = group.member(row0), member1 = group.member(row1);
  int see0 = member0 < job.members ? a.rows[a.members[job.first + member0]].y : last;
  int see1 = member1 < job.members ? a.rows[a.members[job.first + member1]].y : last;
  float sums[HD / 2], s[32];
  float total0 = 0.f, total1 = 0.f, highest0 = LOWEST, highest1 = LOWEST;  // of merged spans
  u64 q = descriptor(shared_address(queries));

  // Waits for the tile of `turn`: what others wrote is to be read by the tensor cores.
  auto await_tile = [&] {
    barrier_wait(&shared->full[turn.stage()], turn.parity());
    shared_for_tensor_cores();
  };
  auto start_scores = [&](int stage) {
    u64 k = descriptor(shared_address(shared->stages[stage].keys));
    begin_products();
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++) {
      int offset = (kk / 4 * CHUNK_BYTES + kk % 4 * 32) >> 4;
      score(s, q + offset, k + offset, kk > 0);
    }
    end_products();
  };

  for (int span = begin / TILES; span * TILES < tiles; span++) {
    int first = span * TILES > begin ? span * TILES : begin, end = (span + 1) * TILES < tiles ? (span + 1) * TILES : tiles;
    float largest0 = LOWEST, largest1 = LOWEST, weights0[4] = {0.f, 0.f, 0.f, 0.f}, weights1[4] = {0.f, 0.f, 0.f, 0.f};
    u32 w[4][4];
#pragma unroll
    for (int i = 0; i < HD / 2; i++) sums[i] = 0.f;
    auto start_sums = [&](int stage) {
      u64 v = descriptor(shared_address(shared->stages[stage].values));
      begin_products();
#pragma unroll
      for (int ks = 0; ks < 4; ks++) weigh(sums, w[ks], v + (ks * 16 * 128 >> 4));
      end_products();
    };
    float correct0, correct1;
    // Scores of a tile become weights.
    auto weights_of = [&](int tile, int stage) {
      const Scales* scales = &shared->scales[stage];
      float top0 = largest0, top1 = largest1;
      int beyond0 = see0 - tile * TILE, beyond1 = see1 - tile * TILE;  // last visible token of the tile
      int before0 = beyond0 - a.window, before1 = beyond1 - a.window;  // last one before the window
      bool masked = __any_sync(WARP, beyond0 < TILE - 1 || beyond1 < TILE - 1 || before0 >= 0 || before1 >= 0);
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          int t = n * 8 + (lane & 3) * 2 + j;
          float key = changing ? scales->key[t] : constant_key, shift = changing ? scales->shift[t] : 0.f;
          float& x = s[n * 4 + j];
          float& y = s[n * 4 + j + 2];
          x = fmaf(x, key, shift);
          y = fmaf(y, key, shift);
          if (masked) {
            if (t > beyond0 || t <= before0) x = NEG_INF;
            if (t > beyond1 || t <= before1) y = NEG_INF;
          }
          top0 = fmaxf(top0, x);
          top1 = fmaxf(top1, y);
        }
      top0 = lanes_max(top0);
      top1 = lanes_max(top1);
      correct0 = power(largest0 - top0);
      correct1 = power(largest1 - top1);
      largest0 = top0; largest1 = top1;
#pragma unroll
      for (int i = 0; i < 4; i++) { weights0[i] *= correct0; weights1[i] *= correct1; }
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          float inverse = changing ? scales->inverse[n * 8 + (lane & 3) * 2 + j] : 1.f;
          float& x = s[n * 4 + j];
          float& y = s[n * 4 + j + 2];
          x = power(x - top0);
          y = power(y - top1);
          weights0[n / 2] = fmaf(x, inverse, weights0[n / 2]);
          weights1[n / 2] = fmaf(y, inverse, weights1[n / 2]);
        }
    };
    auto round_weights = [&] {
#pragma unroll
      for (int ks = 0; ks < 4; ks++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float* p = &s[(2 * ks + (j >> 1)) * 4 + (j & 1) * 2];
          w[ks][j] = to_operands(p[0], p[1]);
        }
    };
    int stage = turn.stage();
    await_tile();
    pin(s);
    start_scores(stage);
    await_products<0>();
    pin(s);
    weights_of(first, stage);
    round_weights();
    for (int tile = first + 1; tile < end; tile++) {
      turn.count++;
      int before = stage;
      stage = turn.stage();
      await_tile();
      // Nothing may touch what products add to once the first of them has started.
      pin(s);
      pin(sums);
      start_scores(stage);
      start_sums(before);
      await_products<1>();                             // the scores
      pin(s);
      weights_of(tile, stage);
      await_products<0>();
      pin(sums);
      barrier_arrive(&shared->empty[before]);
#pragma unroll
      for (int i = 0; i < HD / 2; i += 4) {
        sums[i] *= correct0; sums[i + 1] *= correct0;
        sums[i + 2] *= correct1; sums[i + 3] *= correct1;
      }
      round_weights();
    }
    pin(sums);
    start_sums(stage);
    await_products<0>();
    pin(sums);
    barrier_arrive(&shared->empty[stage]);
    turn.count++;

    float sum0 = lanes_sum(weights0[0]), sum1 = lanes_sum(weights1[0]);
#pragma unroll
    for (int i = 1; i < 4; i++) { sum0 += lanes_sum(weights0[i]); sum1 += lanes_sum(weights1[i]); }
    if (begin / TILES == last / SPAN) {
      total0 = sum0; total1 = sum1;
      break;
    }
    Merge m0 = merge(highest0, largest0), m1 = merge(highest1, largest1);
    float (*kept)[128] = shared->merged[own];
    // A row begins with its own first span, and has no part in those before and beyond.
    int first0 = first_span(a, see0), first1 = first_span(a, see1);
    bool begins0 = span == first0, begins1 = span == first1;
    bool seen0 = span > first0 && see0 / SPAN >= span, seen1 = span > first1 && see1 / SPAN >= span;
#pragma unroll
    for (int i = 0; i < HD / 2; i++) {
      bool second = i & 2;
      float before = kept[i][thread];
      if (second ? begins1 : begins0) before = sums[i];
      else if (second ? seen1 : seen0) before = merged(second ? m1 : m0, before, sums[i]);
      kept[i][thread] = sums[i] = before;
    }
    if (begins0) { highest0 = largest0; total0 = sum0; }
    if (begins1) { highest1 = largest1; total1 = sum1; }
    if (seen0) { highest0 = m0.largest; total0 = merged(m0, total0, sum0); }
    if (seen1) { highest1 = m1.largest; total1 = merged(m1, total1, sum1); }
  }

  float scale = unscaled(a.v);
#pragma unroll
  for (int side = 0; side < 2; side++) {
    int row = side ? row1 : row0, member = side ? member1 : member0;
    if (member >= job.members) continue;
    float inverse = 1.f / (side ? total1 : total0);
    i64 to = ((i64)a.members[job.first + member] * a.heads + head * group.size + row - member * group.size) * HD;
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
      put2(a, to + n * 8 + (lane & 3) * 2, finish(sums[n * 4 + side * 2], inverse, scale), finish(sums[n * 4 + side * 2 + 1], inverse, scale));
  }
}

extern "C" __global__ void __launch_bounds__(128 * (COMPUTING + 1), 1) attend_prompt(Attention a, int job_count) {
  extern __shared__ uint4 memory[];
  Shared* shared = (Shared*)(((u64)memory + 1023) / 1024 * 1024);
  int thread = threadIdx.x;
  if (thread == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&shared->full[i], FULL_ARRIVALS);
      // Every thread arrives that reads: racecheck sees no order behind one lane that does so for its warp.
      barrier_init(&shared->empty[i], 128 * COMPUTING);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int warpgroup = thread / 128;
  Turn turn;
  turn.count = 0;
  // Blocks take rows and heads in turns, the longest first: one's end overlaps another's beginning.
  if (warpgroup == COMPUTING) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COPYING_REGISTERS));
    for (int i = blockIdx.x; i < job_count * a.kv_heads; i += gridDim.x)
      copy_tiles(a, a.jobs[i / a.kv_heads], i % a.kv_heads, shared, turn, thread % 128);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COMPUTING_REGISTERS));
    for (int i = blockIdx.x; i < job_count * a.kv_heads; i += gridDim.x)
      compute(a, a.jobs[i / a.kv_heads], i % a.kv_heads, shared, turn, warpgroup, thread % 128);
  }
}

// How many sums of the two kinds of instructions differ, on noise whose numbers span `spread` powers
// of two: scores with both operands in shared memory, sums with one in registers and the other
// transposed, both as wide as in attention. A tile of 64 rows per block.
KERNEL(128) compare_products(u32 seed, int spread, u32* differing) {
  __shared__ __align__(1024) char left[OPERAND_BYTES], right[OPERAND_BYTES];
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  u32 state = seed + (blockIdx.x * 128 + thread) * 0x9e3779b9u;
  auto noise = [&] {
    state ^= state << 13; state ^= state >> 17; state ^= state << 5;
    float x = (float)(int)state * (1.f / 2147483648.f);
    return x * __uint_as_float((127 - state % spread) << 23);
  };
  for (int i = thread; i < 64 * HD; i += 128) {
    int at = swizzled(i / HD, i % HD);
    *(u16*)(left + at) = to_operand(noise());
    *(u16*)(right + at) = to_operand(noise());
  }
  float scores[32], sums[HD / 2], expected_scores[32], expected_sums[HD / 2];
#pragma unroll
  for (int i = 0; i < 32; i++) scores[i] = expected_scores[i] = noise();
#pragma unroll
  for (int i = 0; i < HD / 2; i++) sums[i] = expected_sums[i] = noise();
  shared_for_tensor_cores();
  __syncthreads();
  u32 w[HD / 16][4];                                   // the first four serve as weights
#pragma unroll
  for (int kk = 0; kk < HD / 16; kk++) load_matrices(w[kk], left + swizzled(warp * 16 + (lane & 15), kk * 16 + (lane >> 4) * 8));
  u64 q = descriptor(shared_address(left)), k = descriptor(shared_address(right));
  pin(scores);
  pin(sums);
  begin_products();
#pragma unroll
  for (int kk = 0; kk < HD / 16; kk++) {
    int offset = (kk / 4 * CHUNK_BYTES + kk % 4 * 32) >> 4;
    score(scores, q + offset, k + offset, true);
  }
#pragma unroll
  for (int ks = 0; ks < 4; ks++) weigh(sums, w[ks], k + (ks * 16 * 128 >> 4));
  end_products();
  await_products<0>();
  pin(scores);
  pin(sums);
  u32 b[4];
#pragma unroll
  for (int kk = 0; kk < HD / 16; kk++)
#pragma unroll
    for (int np = 0; np < 4; np++) {
      load_matrices(b, right + swizzled(np * 16 + (lane & 7) + ((lane >> 4) << 3), kk * 16 + ((lane >> 3) & 1) * 8));
      multiply(expected_scores + np * 8, w[kk], b[0], b[1]);
      multiply(expected_scores + np * 8 + 4, w[kk], b[2], b[3]);
    }
#pragma unroll
  for (int ks = 0; ks < 4; ks++)
#pragma unroll
    for (int np = 0; np < HD / 16; np++) {
      load_transposed(b, right + swizzled(ks * 16 + (lane & 15), np * 16 + (lane >> 4) * 8));
      multiply(expected_sums + np * 8, w[ks], b[0], b[1]);
      multiply(expected_sums + np * 8 + 4, w[ks], b[2], b[3]);
    }
  u32 count = 0;
#pragma unroll
  for (int i = 0; i < 32; i++) count += __float_as_uint(scores[i]) != __float_as_uint(expected_scores[i]);
#pragma unroll
  for (int i = 0; i < HD / 2; i++) count += __float_as_uint(sums[i]) != __float_as_uint(expected_sums[i]);
  if (count) atomicAdd(differing, count);
}
