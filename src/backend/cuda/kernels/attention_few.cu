// Blocks of 16 query rows of one key/value head over one span: few rows, many sequences. Four warps
// share the rows; each computes the scores of a quarter of a tile's tokens and the sums of a share of
// the elements. Elements are read as they are stored and widened on their way to the tensor cores.
// Blocks stay and take rows and heads in turns: while one turn's last tile is computed, the first tile
// of the next is under way, and the addresses of the turn after that.
//
// Tiles that a block holds as they are stored (HELD_FEW): two of each side, so that whole tiles are copied
// ahead; where these do not fit, one of each side (ONE_EACH), so that one side is copied while the other
// is computed; or one for both in turns (IN_TURNS). Operands of what is staged then take turns as well.
#define TWO_EACH 2
#define ONE_EACH 1
#define IN_TURNS 0
#define FEW_STAGES (HELD_FEW == TWO_EACH ? 2 : 1)
// Blocks that should share a multiprocessor: more hide each other's waits, as long as registers
// suffice.
#define FEW_BLOCKS (EXACT || HD > 128 ? 1 : K_BYTES && V_BYTES ? 5 : 3)
#define STRIDE (HDP + 8)                                       // halves per row: rows fall on different banks
#define BYTE_STRIDE (HDP / 16 % 2 ? HDP : HDP + 16)            // bytes per row of one-byte elements, likewise
#define K_ROW (K_BYTES ? BYTE_STRIDE : STRIDE * 2)
#define V_ROW (V_BYTES ? BYTE_STRIDE : STRIDE * 2)
// Bytes per row as it is copied: of what is staged, whole 16 bytes.
#define RAW_ROW(class) ((WIDTH_OF(class) + 15) / 16 * 16)
#define K_COPIED (K_STAGED ? RAW_ROW(K_CLASS) : K_ROW)
#define V_COPIED (V_STAGED ? RAW_ROW(V_CLASS) : V_ROW)
#define WEIGHTS (TILE + 8)                                     // halves per row of weights
#define KEPT (HDP <= 128)                                      // queries stay in registers
// Weights lie behind queries, or where queries were that stay in registers.
#define WEIGHTS_BEHIND (KEPT ? 0 : STRIDE)
#define BOTH (!KEPT ? STRIDE + WEIGHTS : STRIDE > WEIGHTS ? STRIDE : WEIGHTS)
#define GROUPS (HDP / 16)                                      // 16 elements each
// Loops over long vectors are unrolled in part: whole, they hold more addresses than there are registers.
#define UNROLLED(times) (HD > 256 ? times : 256)

// Starts to copy one side of the tile at `token0` as it is stored to rows of ROW bytes; what lies
// beyond `last` becomes zero: whatever bytes are there never enter arithmetic. `pages` are the
// addresses of the tile's pages.
template <int THREADS, int WIDTH, int ROW> DEV void fetch(const u64* pages, u32 elements, int head, int token0, int last, char* to) {
  const int PIECE = WIDTH % 8 ? 4 : WIDTH % 16 ? 8 : 16, PIECES = WIDTH / PIECE;  // per token
  const int COUNT = TILE * PIECES, STEP = THREADS / PIECES;
  int thread = threadIdx.x;
  u32 base = shared_address(to), of_head = elements + head * (PAGE * WIDTH);
  if (THREADS % PIECES == 0 && TILE % STEP == 0 && (PAGE % STEP == 0 || STEP % PAGE == 0)) {
    // A thread takes the same piece of every STEP-th token: addresses differ by what is known beforehand.
    int own = thread / PIECES, c = thread % PIECES * PIECE;
    u32 offset = of_head + own % PAGE * WIDTH + c, at = base + own * ROW + c;
    if (token0 + TILE - 1 <= last) {
#pragma unroll UNROLLED(4)
      for (int token = 0; token < TILE; token += STEP)
        copy_piece<PIECE>(at + token * ROW, pages[token / PAGE + (STEP > PAGE ? own / PAGE : 0)] + (offset + token % PAGE * WIDTH));
    } else {
#pragma unroll UNROLLED(4)
      for (int token = 0; token < TILE; token += STEP) {
        bool stored = token0 + own + token <= last;
        u64 page = pages[stored ? token / PAGE + (STEP > PAGE ? own / PAGE : 0) : 0];
        copy_piece<PIECE>(at + token * ROW, page + (offset + token % PAGE * WIDTH), stored ? PIECE : 0);
      }
    }
  } else {
#pragma unroll UNROLLED(4)
    for (int j = 0; j < (COUNT + THREADS - 1) / THREADS; j++) {
      int i = j * THREADS + thread, token = i / PIECES, c = i % PIECES * PIECE;
      if (COUNT % THREADS != 0 && i >= COUNT) break;
      bool stored = token0 + token <= last;
      u64 page = pages[stored ? token / PAGE : 0];
      copy_piece<PIECE>(base + token * ROW + c, page + (of_head + token % PAGE * WIDTH + c), stored ? PIECE : 0);
    }
  }
}

// Operands of one side of the tile at `token0`, whose stored bytes lie in `raw`: rows of STRIDE in the
// order of elements, zeros beyond `last`. First tokens are read where they lie, and values beside them
// take over a part of their scales.
template <int THREADS, int CLASS, bool VALUES> DEV void stage(const Attention& a, const Side& side, int slot, int head, int token0, int last, const char* raw, char* tile) {
  const int PIECES = HDP / 8, GROUP = CLASS == INTEGER4 ? 32 : 64;
#pragma unroll 2
  for (int i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
    int own = i / PIECES, d = i % PIECES * 8, token = token0 + own;
    const char* row = raw + own * RAW_ROW(CLASS);
    uint4 x;
    x.x = x.y = x.z = x.w = 0;
    if (d < HD && token <= last) {
      if (SINK && token < a.sink_tokens) {
        u64 first = a.sink + slot * a.sink_bytes + side.sink;
        x = *(const uint4*)(first + (((i64)token * a.kv_heads + head) * HD + d) * 2);
      } else if (CLASS >= INTEGER4) {
        u32 codes = *(const u32*)(row + d / 2), parameters = *(const u32*)(row + HD / 2 + d / GROUP * 4);
        float scale = f16_to_f32((u16)parameters), minimum = f16_to_f32((u16)(parameters >> 16));
        u32 pairs[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
          pairs[j] = to_operands(int4_value(codes >> j * 8 & 15, scale, minimum), int4_value(codes >> (j * 8 + 4) & 15, scale, minimum));
        x.x = pairs[0]; x.y = pairs[1]; x.z = pairs[2]; x.w = pairs[3];
      } else {
        uint2 b = *(const uint2*)(row + d), low = widen<CLASS>(side.format, b.x), high = widen<CLASS>(side.format, b.y);
        if (VALUES) {
          float scale = fetch_scale(a, side, a.table + (i64)slot * a.max_pages, head, token, last);
          u32 power = to_operand(power_of_two(taken_over(side.format, scale)));
          power |= power << 16;
          low.x = times(low.x, power); low.y = times(low.y, power);
          high.x = times(high.x, power); high.y = times(high.y, power);
        }
        x.x = low.x; x.y = low.y; x.z = high.x; x.w = high.y;
      }
    }
    *(uint4*)(tile + (own * STRIDE + d) * 2) = x;
  }
}

#define FEW_VALUES (HELD_FEW == IN_TURNS ? 0 : TILE * K_COPIED)   // where values lie behind keys
#define FEW_TILE (HELD_FEW == IN_TURNS ? TILE * (K_COPIED > V_COPIED ? K_COPIED : V_COPIED) : TILE * (K_COPIED + V_COPIED))
#define FEW_STAGED (TILE * STRIDE * 2)
#define FEW_STAGED_VALUES (K_STAGED && HELD_FEW == TWO_EACH ? FEW_STAGED : 0)
#define FEW_STAGED_ALL ((HELD_FEW == TWO_EACH ? K_STAGED + V_STAGED : K_STAGED || V_STAGED) * FEW_STAGED)
#define FEW_SCALES 2                                           // tiles whose scales are held
static_assert(HELD_FEW != IN_TURNS || HD == HDP, "zeros behind vectors that lie in turns");

// Scales of a tile as they are stored.
struct FewScales { float key[TILE], value[TILE]; };

// Which of a block's turns: a job, and the key/value head that the block takes of it.
struct FewPlace { int job, head; };
// What a turn covers: `count` tiles from `token0` on, the last of which ends with `last` at most.
struct FewTurn { int head, token0, count, last; };
DEV FewTurn few_turn(const Job& job, int head) {
  FewTurn t;
  t.head = head;
  t.token0 = first_token(job);
  int end = job.last / TILE + 1, most = (job.span + 1) * TILES;
  t.count = (end < most ? end : most) - t.token0 / TILE;
  t.last = job.last;
  return t;
}
// Starts to copy a turn's job.
DEV void fetch_job(const Attention& a, int job, Job* to) {
  if (threadIdx.x < 2) copy_piece<16>(shared_address(to) + threadIdx.x * 16, (u64)(a.jobs + job) + threadIdx.x * 16);
}
// Starts to copy the addresses of a turn's pages.
DEV void fetch_addresses(const Attention& a, const Job& job, u64* to) {
  int i = threadIdx.x, token = first_token(job) + i * PAGE;
  if (i < SPAN / PAGE && token <= job.last) copy_piece<8>(shared_address(to + i), (u64)&a.table[(i64)job.slot * a.max_pages + token / PAGE].stored);
}
// Starts to copy a tile's dynamic scales. What lies beyond `last` may be anything: attention does not
// look at it.
DEV void fetch_scales(const Attention& a, const u64* pages, int head, int token0, int last, FewScales* to) {
  int piece = threadIdx.x % (TILE / 4), token = piece * 4;
  if (threadIdx.x >= 2 * (TILE / 4) || token0 + token > last) return;
  bool is_value = threadIdx.x >= TILE / 4;
  if (!(is_value ? a.v.dynamic : a.k.dynamic)) return;
  u64 from = pages[token / PAGE] + (is_value ? a.v.scales : a.k.scales) + (head * PAGE + token % PAGE) * 4;
  copy_piece<16>(shared_address((is_value ? to->value : to->key) + token), from);
}
static_assert(SPAN / PAGE <= 128, "a thread per page of a span");

extern "C" __global__ void __launch_bounds__(128, FEW_BLOCKS) attend_few(Attention a, int job_count) {
  const int THREADS = 128, ROWS = 16;
  extern __shared__ uint4 memory[];
  char* tiles = (char*)memory;                                        // [FEW_STAGES] of keys, then values
  char* staged = tiles + FEW_STAGES * FEW_TILE;                       // operands of keys, then values, that are staged
  char* queries = staged + FEW_STAGED_ALL;                            // [PARTS][ROWS][STRIDE] halves
  char* weights_at = queries + PARTS * ROWS * WEIGHTS_BEHIND * 2;     // [PARTS][ROWS][WEIGHTS] halves
  float* tops = (float*)(queries + PARTS * ROWS * BOTH * 2);          // [4][ROWS], largest scores, at the end weights
  FewScales* scales = (FewScales*)(tops + 4 * ROWS);                  // [FEW_SCALES]
  u64* addresses = (u64*)(scales + FEW_SCALES);                       // [2][SPAN / PAGE]
  Job* jobs = (Job*)(addresses + 2 * (SPAN / PAGE));                  // [4]
  static_assert(FEW_STAGES * FEW_TILE + FEW_STAGED_ALL + PARTS * ROWS * BOTH * 2 + 4 * ROWS * sizeof(float)
    + FEW_SCALES * sizeof(FewScales) + 2 * (SPAN / PAGE) * sizeof(u64) + 4 * sizeof(Job) == FEW_SHARED, "shared memory of a block");

  int thread = threadIdx.x, across = thread >> 5, lane = thread & 31;
  Group group = group_of_heads(a);
  bool changing_keys = keys_change(a), changing_values = values_change(a);
  float key_unit = a.factor * unscaled(a.k);
  if (HD < HDP)
    for (int i = thread; i < FEW_STAGES * TILE; i += THREADS) {
      char* tile = tiles + i / TILE * FEW_TILE;
      for (int d = HD; d < HDP; d++) {
        if (K_BYTES) tile[i % TILE * K_ROW + d] = 0;
        else if (!K_STAGED) ((u16*)(tile + i % TILE * K_ROW))[d] = 0;
        if (V_BYTES) tile[FEW_VALUES + i % TILE * V_ROW + d] = 0;
        else if (!V_STAGED) ((u16*)(tile + FEW_VALUES + i % TILE * V_ROW))[d] = 0;
      }
    }
  // Tiles and turns that this block began; tiles, scales and addresses take two places in turns.
  u32 begun = 0, turns = 0;
  auto start_values = [&](const FewTurn& t, int tile, u32 at, const u64* pages) {
    char* to = tiles + at % FEW_STAGES * FEW_TILE + FEW_VALUES;
    fetch<THREADS, WIDTH_OF(V_CLASS), V_COPIED>(pages + tile * (TILE / PAGE), a.v.elements, t.head, t.token0 + tile * TILE, t.last, to);
  };
  // Keys, scales, and values that have room beside those of the tile before.
  auto start = [&](const FewTurn& t, int tile, u32 at, const u64* pages) {
    char* to = tiles + at % FEW_STAGES * FEW_TILE;
    const u64* from = pages + tile * (TILE / PAGE);
    int token0 = t.token0 + tile * TILE;
    fetch<THREADS, WIDTH_OF(K_CLASS), K_COPIED>(from, a.k.elements, t.head, token0, t.last, to);
    if (HELD_FEW == TWO_EACH) start_values(t, tile, at, pages);
    if (changing_keys || changing_values) fetch_scales(a, from, t.head, token0, t.last, scales + at % FEW_SCALES);
  };
  // The turns of a block are as many places apart as there are blocks.
  FewPlace step, place, next, after;
  step.job = gridDim.x / a.kv_heads; step.head = gridDim.x % a.kv_heads;
  place.job = blockIdx.x / a.kv_heads; place.head = blockIdx.x % a.kv_heads;
  auto behind = [&](FewPlace p) {
    p.job += step.job; p.head += step.head;
    if (p.head >= a.kv_heads) { p.head -= a.kv_heads; p.job++; }
    return p;
  };
  next = behind(place);
  fetch_job(a, place.job, jobs);
  if (next.job < job_count) fetch_job(a, next.job, jobs + 1);
  copies_end();
  copies_wait();
  __syncthreads();
  fetch_addresses(a, jobs[0], addresses);
  copies_end();
  copies_wait();
  __syncthreads();
  start(few_turn(jobs[0], place.head), 0, 0, addresses);
  if (next.job < job_count) fetch_addresses(a, jobs[1], addresses + SPAN / PAGE);
  copies_end();

  for (;; turns++, place = next, next = after) {
    const Job& job = jobs[turns % 4];
    FewTurn own = few_turn(job, place.head);
    int head = own.head, last = own.last, token0 = own.token0, count = own.count;
    after = behind(next);
    bool has_next = next.job < job_count, has_after = after.job < job_count;
    // Its place is that of the turn before the last, which all threads have ended.
    if (has_after) fetch_job(a, after.job, jobs + (turns + 2) % 4);
    copies_end();
    put_queries<ROWS, THREADS>(a, job, head, group, 0, thread, [&](int part, int r, int t) {
      return (u32*)(queries + ((part * ROWS + r) * STRIDE + t) * 2);
    });
    __syncthreads();
    u32 kept[PARTS][KEPT ? GROUPS : 1][4];
    if (KEPT) {
#pragma unroll
      for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int kk = 0; kk < (KEPT ? GROUPS : 1); kk++)
          load_matrices(kept[part][kk], queries + ((part * ROWS + (lane & 15)) * STRIDE + kk * 16 + (lane >> 4) * 8) * 2);
    }

    // This thread's two rows of every fragment, and the last token that each may see.
    int row0 = lane >> 2, row1 = row0 + 8;
    int member0 = group.member(row0), member1 = group.member(row1);
    int see0 = member0 < job.members ? a.rows[a.members[job.first + member0]].y : last;
    int see1 = member1 < job.members ? a.rows[a.members[job.first + member1]].y : last;
    const int OWN = (GROUPS + 3) / 4;                                   // groups of elements of a warp
    float sums[OWN][2][4];
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
      for (int j = 0; j < 8; j++) sums[i][j >> 2][j & 3] = 0.f;
    float largest0 = LOWEST, largest1 = LOWEST, weights0 = 0.f, weights1 = 0.f;

    for (int tile = 0; tile < count; tile++, begun++) {
      copies_wait();
      __syncthreads();
      u64* pages = addresses + (turns & 1) * (SPAN / PAGE);
      auto start_next = [&] {
        bool is_last = tile + 1 == count;
        if (!is_last || has_next) {
          FewTurn of = own;
          const u64* from = pages;
          if (is_last) {
            of = few_turn(jobs[(turns + 1) % 4], next.head);
            from = addresses + (~turns & 1) * (SPAN / PAGE);
          }
          start(of, is_last ? 0 : tile + 1, begun + 1, from);
        }
        if (is_last && has_after) fetch_addresses(a, jobs[(turns + 2) % 4], pages);
        copies_end();
      };
      if (HELD_FEW == TWO_EACH) {
        start_next();
      } else if (HELD_FEW == ONE_EACH) {
        start_values(own, tile, begun, pages);
        copies_end();
      }
      const char* keys = tiles + begun % FEW_STAGES * FEW_TILE;
      const char* values = keys + FEW_VALUES;
      int first = token0 + tile * TILE;
      if (K_STAGED) {
        stage<THREADS, K_CLASS, false>(a, a.k, job.slot, head, first, last, keys, staged);
        keys = staged;
      }
      auto stage_values = [&] {
        stage<THREADS, V_CLASS, true>(a, a.v, job.slot, head, first, last, values, staged + FEW_STAGED_VALUES);
        values = staged + FEW_STAGED_VALUES;
      };
      if (V_STAGED && HELD_FEW == TWO_EACH) stage_values();
      if (K_STAGED || (V_STAGED && HELD_FEW == TWO_EACH)) __syncthreads();
      const FewScales* of_tile = scales + begun % FEW_SCALES;
      int live = last - token0 - tile * TILE;                           // last token of the tile that is stored

      // Scores of tokens 16 * across on.
      float s[2][4];
#pragma unroll
      for (int j = 0; j < 8; j++) s[j >> 2][j & 3] = 0.f;
      // What nobody sees is left out: it would count nothing.
      if (across * 16 <= live) {
#pragma unroll
        for (int part = PARTS - 1; part >= 0; part--)
#pragma unroll UNROLLED(4)
          for (int kk = 0; kk < GROUPS; kk += 2) {
            u32 b[2][4];                                                  // [kk, kk + 1][two of each 8 tokens]
            if (K_BYTES) {
              int second = kk + 1 < GROUPS ? lane >> 4 : 0;
              u32 raw[4];
              load_matrices(raw, keys + (across * 16 + (lane & 15)) * K_ROW + (kk + second) * 16);
#pragma unroll
              for (int m = 0; m < 4; m++) {
                uint2 w = widen<K_CLASS>(a.k.format, raw[m]);
                b[m >> 1][(m & 1) * 2] = w.x; b[m >> 1][(m & 1) * 2 + 1] = w.y;
              }
            } else {
#pragma unroll
              for (int m = 0; m < 2; m++)
                if (kk + m < GROUPS)
                  load_matrices(b[m], keys + (across * 16 + (lane & 7) + ((lane >> 4) << 3)) * K_ROW + ((kk + m) * 16 + ((lane >> 3) & 1) * 8) * 2);
            }
#pragma unroll
            for (int m = 0; m < 2; m++) {
              if (kk + m >= GROUPS) continue;
              u32 q[4];
              if (KEPT) {
#pragma unroll
                for (int i = 0; i < 4; i++) q[i] = kept[part][KEPT ? kk + m : 0][i];
              } else {
                load_matrices(q, queries + ((part * ROWS + (lane & 15)) * STRIDE + (kk + m) * 16 + (lane >> 4) * 8) * 2);
              }
              multiply(s[0], q, b[m][0], b[m][1]);
              multiply(s[1], q, b[m][2], b[m][3]);
            }
          }
      }

      float2 inverse[2];
      float top0 = LOWEST, top1 = LOWEST;
      int beyond0 = see0 - token0 - tile * TILE, beyond1 = see1 - token0 - tile * TILE;  // last visible token of the tile
      int before0 = beyond0 - a.window, before1 = beyond1 - a.window;                   // last one before the window
      bool masked = __any_sync(WARP, beyond0 < TILE - 1 || beyond1 < TILE - 1 || before0 >= 0 || before1 >= 0);
#pragma unroll
      for (int n = 0; n < 2; n++)
        {
          int t = across * 16 + n * 8 + (lane & 3) * 2;
          float2 key, shift;
          key.x = key.y = key_unit; shift.x = shift.y = 0.f;
          inverse[n].x = inverse[n].y = 1.f;
          if (changing_keys) {
            float2 scale = *(const float2*)(of_tile->key + t);
            scale.x = scale_at(a, a.k, first + t, scale.x); scale.y = scale_at(a, a.k, first + t + 1, scale.y);
            key.x = key_unit * fabsf(scale.x); key.y = key_unit * fabsf(scale.y);
          }
          if (changing_values) {
            float2 scale = *(const float2*)(of_tile->value + t);
            scale.x = value_scale_at(a, first + t, scale.x); scale.y = value_scale_at(a, first + t + 1, scale.y);
            shift.x = shift_of(scale.x); shift.y = shift_of(scale.y);
            inverse[n].x = t <= live ? inverse_of(scale.x) : 0.f; inverse[n].y = t < live ? inverse_of(scale.y) : 0.f;
          }
          s[n][0] = fmaf(s[n][0], key.x, shift.x);
          s[n][1] = fmaf(s[n][1], key.y, shift.y);
          s[n][2] = fmaf(s[n][2], key.x, shift.x);
          s[n][3] = fmaf(s[n][3], key.y, shift.y);
          if (masked) {
            if (t > beyond0 || t <= before0) s[n][0] = NEG_INF;
            if (t + 1 > beyond0 || t + 1 <= before0) s[n][1] = NEG_INF;
            if (t > beyond1 || t <= before1) s[n][2] = NEG_INF;
            if (t + 1 > beyond1 || t + 1 <= before1) s[n][3] = NEG_INF;
          }
          top0 = fmaxf(top0, fmaxf(s[n][0], s[n][1]));
          top1 = fmaxf(top1, fmaxf(s[n][2], s[n][3]));
        }
      top0 = lanes_max(top0);
      top1 = lanes_max(top1);
      if ((lane & 3) == 0) {
        tops[across * ROWS + row0] = top0;
        tops[across * ROWS + row1] = top1;
      }
      __syncthreads();
      top0 = largest0; top1 = largest1;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        top0 = fmaxf(top0, tops[i * ROWS + row0]);
        top1 = fmaxf(top1, tops[i * ROWS + row1]);
      }
      float correct0 = power(largest0 - top0), correct1 = power(largest1 - top1);
      largest0 = top0; largest1 = top1;
      weights0 *= correct0; weights1 *= correct1;
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int j = 0; j < 4; j++) s[n][j] = power(s[n][j] - (j < 2 ? top0 : top1));
        weights0 = fmaf(s[n][1], inverse[n].y, fmaf(s[n][0], inverse[n].x, weights0));
        weights1 = fmaf(s[n][3], inverse[n].y, fmaf(s[n][2], inverse[n].x, weights1));
#pragma unroll
        for (int side = 0; side < 2; side++) {
          u16* to = (u16*)weights_at + (row0 + side * 8) * WEIGHTS + across * 16 + n * 8 + (lane & 3) * 2;
          u32 w = to_operands(s[n][side * 2], s[n][side * 2 + 1]);
          *(u32*)to = w;
          if (EXACT) *(u32*)(to + ROWS * WEIGHTS) = to_rest(s[n][side * 2], s[n][side * 2 + 1], w);
        }
      }
#pragma unroll
      for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          sums[i][j][0] *= correct0; sums[i][j][1] *= correct0;
          sums[i][j][2] *= correct1; sums[i][j][3] *= correct1;
        }
      if (HELD_FEW == IN_TURNS) {
        start_values(own, tile, begun, pages);
        copies_end();
      }
      if (HELD_FEW != TWO_EACH) {
        copies_wait();
        if (V_STAGED) {
          __syncthreads();
          stage_values();
        }
      }
      __syncthreads();
      if (HELD_FEW == ONE_EACH) start_next();

#pragma unroll
      for (int ks = 0; ks < 4; ks += 2) {
        if (ks * 16 > live) break;
        u32 w[PARTS][2][4];
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
          for (int m = 0; m < 2; m++)
            load_matrices(w[part][m], weights_at + ((part * ROWS + (lane & 15)) * WEIGHTS + (ks + m) * 16 + (lane >> 4) * 8) * 2);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
          int g = i * 4 + across;
          if (GROUPS % 4 != 0 && g >= GROUPS) continue;
          u32 b[2][4];                                                  // [ks, ks + 1][two of each half of the elements]
          if (V_BYTES) {
            // A transposed unit is two neighbouring elements: even and odd ones become columns apart.
            u32 raw[4];
            load_transposed(raw, values + (ks * 16 + lane) * V_ROW + g * 16);
#pragma unroll
            for (int m = 0; m < 4; m++) {
              uint2 x = widen<V_CLASS>(a.v.format, __byte_perm(raw[m], 0, 0x3120));
              b[m >> 1][m & 1] = x.x; b[m >> 1][2 + (m & 1)] = x.y;
            }
          } else {
#pragma unroll
            for (int m = 0; m < 2; m++)
              load_transposed(b[m], values + ((ks + m) * 16 + (lane & 15)) * V_ROW + (g * 16 + (lane >> 4) * 8) * 2);
          }
#pragma unroll
          for (int m = 0; m < 2; m++) {
            if (EXACT) {
              multiply(sums[i][0], w[PARTS - 1][m], b[m][0], b[m][1]);
              multiply(sums[i][1], w[PARTS - 1][m], b[m][2], b[m][3]);
            }
            multiply(sums[i][0], w[0][m], b[m][0], b[m][1]);
            multiply(sums[i][1], w[0][m], b[m][2], b[m][3]);
          }
        }
      }
      if (HELD_FEW == IN_TURNS) {
        __syncthreads();
        start_next();
      }
    }

    // The four quarters' weights.
    weights0 = lanes_sum(weights0);
    weights1 = lanes_sum(weights1);
    __syncthreads();
    if ((lane & 3) == 0) {
      tops[across * ROWS + row0] = weights0;
      tops[across * ROWS + row1] = weights1;
    }
    __syncthreads();
    weights0 = tops[row0]; weights1 = tops[row1];
#pragma unroll
    for (int i = 1; i < 4; i++) {
      weights0 += tops[i * ROWS + row0];
      weights1 += tops[i * ROWS + row1];
    }
    float scale = unscaled(a.v);
#pragma unroll
    for (int side = 0; side < 2; side++) {
      int row = side ? row1 : row0, member = side ? member1 : member0, see = side ? see1 : see0;
      if (member >= job.members || see / SPAN < job.span || first_span(a, see) > job.span) continue;
      float weights = side ? weights1 : weights0, inverse = 1.f / weights;
      int q_head = head * group.size + row - member * group.size;
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
      for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          // Two neighbouring elements: columns of one half, or of both.
          int first = (i * 4 + across) * 16, c = lane & 3;
          int d = V_BYTES ? first + c * 4 + j * 2 : first + j * 8 + c * 2;
          float x = V_BYTES ? sums[i][0][side * 2 + j] : sums[i][j][side * 2];
          float y = V_BYTES ? sums[i][1][side * 2 + j] : sums[i][j][side * 2 + 1];
          if (d >= HD) continue;
          if (whole) {
            put2(a, to + d, finish(x, inverse, scale), finish(y, inverse, scale));
          } else {
            float2 v;
            v.x = x; v.y = y;
            *(float2*)(a.partial + to + d) = v;
          }
        }
    }
    if (!has_next) return;
  }
}
