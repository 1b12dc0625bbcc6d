// Blocks of 16 * DOWN_MANY query rows of one key/value head over one span, a warp for each 16, or SHARES warps
// that sum a share of the elements each: prompts. HELD_MANY says which tiles a block holds, as in blocks of few
// rows; where it is less than two of each side, operands of sides that are not native take turns in one tile.

#if DOWN_MANY > 0
#define SHARES (HD > 256 ? 2 : 1)
#define OWN_GROUPS ((GROUPS + SHARES - 1) / SHARES)            // groups of elements of a warp
#define TILE_BYTES (TILE * STRIDE * 2)
#define K_RAW (TILE * K_COPIED)
#define V_RAW (TILE * V_COPIED)
#define SIDE_BYTES(stored, raw) ((stored) ? 2 * (raw) + TILE_BYTES : 2 * TILE_BYTES)  // two raw tiles and a widened one, or two
#define ANY_STORED (K_CLASS != NATIVE || V_CLASS != NATIVE)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
// Where values lie behind keys, and what follows behind values.
#define MANY_VALUES (HELD_MANY == TWO_EACH ? SIDE_BYTES(K_CLASS != NATIVE, K_RAW) : HELD_MANY == ONE_EACH ? K_RAW : 0)
#define MANY_TILES (HELD_MANY == TWO_EACH ? MANY_VALUES + SIDE_BYTES(V_CLASS != NATIVE, V_RAW) : \
  (HELD_MANY == ONE_EACH ? K_RAW + V_RAW : LARGER(K_RAW, V_RAW)) + (ANY_STORED ? TILE_BYTES : 0))
static_assert(HELD_MANY != IN_TURNS || HD == HDP, "zeros behind vectors that lie in turns");
// Blocks that should share a multiprocessor: more hide each other's waits, as long as registers
// suffice.
#define MANY_BLOCKS (HD <= 128 && !EXACT ? 2 : 1)

// Stored bytes of a tile become operands.
template <int THREADS, bool KEYS> DEV void convert(int format, const char* raw, char* tile) {
#pragma unroll 2
  for (int i = threadIdx.x; i < TILE * GROUPS; i += THREADS) {
    int token = i / GROUPS, c = i % GROUPS;
    uint4 b = *(const uint4*)(raw + token * BYTE_STRIDE + c * 16), first, second;
    if (KEYS) widen_terms(format, b, first, second);
    else widen_values(format, b, first, second);
    uint4* to = (uint4*)(tile + token * STRIDE * 2 + c * 32);
    to[0] = first;
    to[1] = second;
  }
}

extern "C" __global__ void __launch_bounds__(32 * DOWN_MANY * SHARES, MANY_BLOCKS) attend_many(Attention a) {
  const int THREADS = 32 * DOWN_MANY * SHARES, SCALES = (2 * TILE + THREADS - 1) / THREADS, ROWS = 16 * DOWN_MANY;
  extern __shared__ uint4 memory[];
  char* queries = (char*)memory;                              // [PARTS][ROWS][STRIDE] halves
  char* keys = queries + PARTS * ROWS * STRIDE * 2;
  char* values = keys + MANY_VALUES;
  Scales* scales = (Scales*)(keys + MANY_TILES);
  // Operands of sides that are not native.
  char* wide_keys = HELD_MANY == TWO_EACH ? keys + 2 * K_RAW : keys + MANY_TILES - TILE_BYTES;
  char* wide_values = HELD_MANY == TWO_EACH ? values + 2 * V_RAW : wide_keys;
  u64* addresses = (u64*)(scales + 1);                        // [SPAN / PAGE]
  static_assert(PARTS * ROWS * STRIDE * 2 + MANY_TILES + sizeof(Scales) + SPAN / PAGE * sizeof(u64) == MANY_SHARED, "shared memory of a block");

  const Job job = a.jobs[blockIdx.x];
  Group group = group_of_heads(a);
  int head = blockIdx.y, last = job.last;
  const Page* pages = a.table + (i64)job.slot * a.max_pages;
  int thread = threadIdx.x, down = (thread >> 5) / SHARES, share = (thread >> 5) % SHARES, lane = thread & 31;
  bool changing = keys_change(a) || values_change(a);
  int token0 = first_token(job), end = last / TILE + 1, most = (job.span + 1) * TILES;
  int count = (end < most ? end : most) - token0 / TILE;

  for (int i = thread; i < count * (TILE / PAGE); i += THREADS)
    addresses[i] = token0 + i * PAGE <= last ? pages[token0 / PAGE + i].stored : 0;
  if (HD < HDP)
    for (int i = thread; i < (HELD_MANY == TWO_EACH ? 2 : 1) * TILE; i += THREADS)
      for (int d = HD; d < HDP; d++) {
        if (K_BYTES) keys[i * BYTE_STRIDE + d] = 0;
        else if (!K_STAGED) ((u16*)keys)[i * STRIDE + d] = 0;
        if (V_BYTES) values[i * BYTE_STRIDE + d] = 0;
        else if (!V_STAGED) ((u16*)values)[i * STRIDE + d] = 0;
      }
  __syncthreads();
  auto place = [&](int tile) { return HELD_MANY == TWO_EACH ? tile & 1 : 0; };
  auto start_values = [&](int tile) {
    fetch<THREADS, WIDTH_OF(V_CLASS), V_COPIED>(addresses + tile * (TILE / PAGE), a.v.elements, head, token0 + tile * TILE, last, values + place(tile) * V_RAW);
    copies_end();
  };
  // Keys, and values that have room beside those of the tile before.
  auto start = [&](int tile) {
    fetch<THREADS, WIDTH_OF(K_CLASS), K_COPIED>(addresses + tile * (TILE / PAGE), a.k.elements, head, token0 + tile * TILE, last, keys + place(tile) * K_RAW);
    if (HELD_MANY == TWO_EACH) start_values(tile);
    else copies_end();
  };
  start(0);
  // A block may have fewer threads than a tile has scales.
  float scale_read[SCALES];
  auto read_scales = [&](int tile) {
#pragma unroll
    for (int i = 0; i < SCALES; i++)
      if (thread + i * THREADS < 2 * TILE) scale_read[i] = read_scale(a, pages, head, token0 + tile * TILE, last, thread + i * THREADS);
  };
  if (changing) read_scales(0);
  float constant_key = a.factor * unscaled(a.k);
  put_queries<ROWS, THREADS>(a, job, head, group, 0, thread, [&](int part, int r, int t) {
    return (u32*)(queries + ((part * ROWS + r) * STRIDE + t) * 2);
  });

  // This thread's two rows of every fragment, and the last token that each may see.
  int row0 = down * 16 + (lane >> 2), row1 = row0 + 8;
  int member0 = group.member(row0), member1 = group.member(row1);
  int see0 = member0 < job.members ? a.rows[a.members[job.first + member0]].y : last;
  int see1 = member1 < job.members ? a.rows[a.members[job.first + member1]].y : last;
  float sums[OWN_GROUPS][2][4];
#pragma unroll
  for (int i = 0; i < OWN_GROUPS; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) sums[i][j >> 2][j & 3] = 0.f;
  float largest0 = LOWEST, largest1 = LOWEST, weights0[4] = {0.f, 0.f, 0.f, 0.f}, weights1[4] = {0.f, 0.f, 0.f, 0.f};

  for (int tile = 0; tile < count; tile++) {
    copies_wait();
    __syncthreads();
    if (HELD_MANY == ONE_EACH) start_values(tile);
    else if (HELD_MANY == TWO_EACH && tile + 1 < count) start(tile + 1);
    const char* raw_keys = keys + place(tile) * K_RAW;
    const char* raw_values = values + place(tile) * V_RAW;
    const char* tile_keys = K_CLASS != NATIVE ? wide_keys : raw_keys;
    const char* tile_values = V_CLASS != NATIVE ? wide_values : raw_values;
    int first = token0 + tile * TILE;
    auto widen_side = [&] {
      if (V_BYTES) convert<THREADS, false>(a.v.format, raw_values, wide_values);
      if (V_STAGED) stage<THREADS, V_CLASS, true>(a, a.v, job.slot, head, first, last, raw_values, wide_values);
    };
    if (K_BYTES) convert<THREADS, true>(a.k.format, raw_keys, wide_keys);
    if (HELD_MANY == TWO_EACH && V_BYTES) widen_side();
    if (K_STAGED) stage<THREADS, K_CLASS, false>(a, a.k, job.slot, head, first, last, raw_keys, wide_keys);
    if (HELD_MANY == TWO_EACH && V_STAGED) widen_side();
    if (changing) {
#pragma unroll
      for (int i = 0; i < SCALES; i++)
        if (thread + i * THREADS < 2 * TILE) put_scale(a, scales, thread + i * THREADS, scale_read[i], first);
      read_scales(tile + 1);
    }
    if (K_CLASS != NATIVE || V_CLASS != NATIVE) __syncthreads();

    float s[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] = 0.f;
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--)
#pragma unroll UNROLLED(8)
      for (int kk = 0; kk < GROUPS; kk++) {
        u32 q[4], k[4];
        load_matrices(q, queries + ((part * ROWS + down * 16 + (lane & 15)) * STRIDE + kk * 16 + (lane >> 4) * 8) * 2);
#pragma unroll
        for (int np = 0; np < 4; np++) {
          load_matrices(k, tile_keys + ((np * 16 + (lane & 7) + ((lane >> 4) << 3)) * STRIDE + kk * 16 + ((lane >> 3) & 1) * 8) * 2);
          multiply(s[np * 2], q, k[0], k[1]);
          multiply(s[np * 2 + 1], q, k[2], k[3]);
        }
      }

    float top0 = largest0, top1 = largest1;
    int beyond0 = see0 - token0 - tile * TILE, beyond1 = see1 - token0 - tile * TILE;  // last visible token of the tile
    int before0 = beyond0 - a.window, before1 = beyond1 - a.window;                    // last one before the window
    bool masked = __any_sync(WARP, beyond0 < TILE - 1 || beyond1 < TILE - 1 || before0 >= 0 || before1 >= 0);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int t = n * 8 + (lane & 3) * 2 + j;
        float key = changing ? scales->key[t] : constant_key, shift = changing ? scales->shift[t] : 0.f;
        s[n][j] = fmaf(s[n][j], key, shift);
        s[n][j + 2] = fmaf(s[n][j + 2], key, shift);
        if (masked) {
          if (t > beyond0 || t <= before0) s[n][j] = NEG_INF;
          if (t > beyond1 || t <= before1) s[n][j + 2] = NEG_INF;
        }
        top0 = fmaxf(top0, s[n][j]);
        top1 = fmaxf(top1, s[n][j + 2]);
      }
    top0 = lanes_max(top0);
    top1 = lanes_max(top1);
    float correct0 = power(largest0 - top0), correct1 = power(largest1 - top1);
    largest0 = top0; largest1 = top1;
#pragma unroll
    for (int i = 0; i < 4; i++) { weights0[i] *= correct0; weights1[i] *= correct1; }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float inverse = changing ? scales->inverse[n * 8 + (lane & 3) * 2 + j] : 1.f;
        s[n][j] = power(s[n][j] - top0);
        s[n][j + 2] = power(s[n][j + 2] - top1);
        weights0[n / 2] = fmaf(s[n][j], inverse, weights0[n / 2]);
        weights1[n / 2] = fmaf(s[n][j + 2], inverse, weights1[n / 2]);
      }
#pragma unroll
    for (int i = 0; i < OWN_GROUPS; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        sums[i][j][0] *= correct0; sums[i][j][1] *= correct0;
        sums[i][j][2] *= correct1; sums[i][j][3] *= correct1;
      }
    if (HELD_MANY != TWO_EACH) {
      __syncthreads();                                          // all have read keys
      if (HELD_MANY == IN_TURNS) start_values(tile);
      copies_wait();
      __syncthreads();
      if (HELD_MANY == ONE_EACH && tile + 1 < count) start(tile + 1);
      if (V_CLASS != NATIVE) {
        widen_side();
        __syncthreads();
      }
    }
#pragma unroll
    for (int ks = 0; ks < 4; ks++) {
      u32 w[PARTS][4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float* p = &s[2 * ks + (j >> 1)][(j & 1) * 2];
        w[0][j] = to_operands(p[0], p[1]);
        if (EXACT) w[PARTS - 1][j] = to_rest(p[0], p[1], w[0][j]);
      }
#pragma unroll
      for (int i = 0; i < OWN_GROUPS; i++) {
        int g = i * SHARES + share;
        if (GROUPS % SHARES != 0 && g >= GROUPS) continue;
        u32 v[4];
        load_transposed(v, tile_values + ((ks * 16 + (lane & 15)) * STRIDE + g * 16 + (lane >> 4) * 8) * 2);
        if (EXACT) {
          multiply(sums[i][0], w[PARTS - 1], v[0], v[1]);
          multiply(sums[i][1], w[PARTS - 1], v[2], v[3]);
        }
        multiply(sums[i][0], w[0], v[0], v[1]);
        multiply(sums[i][1], w[0], v[2], v[3]);
      }
    }
    // Scales and widened tiles are about to be replaced.
    if (changing || HELD_MANY == IN_TURNS) __syncthreads();
    if (HELD_MANY == IN_TURNS && tile + 1 < count) start(tile + 1);
  }

  float sum0 = lanes_sum(weights0[0]), sum1 = lanes_sum(weights1[0]);
#pragma unroll
  for (int i = 1; i < 4; i++) { sum0 += lanes_sum(weights0[i]); sum1 += lanes_sum(weights1[i]); }
  float scale = unscaled(a.v);
#pragma unroll
  for (int side = 0; side < 2; side++) {
    int row = side ? row1 : row0, member = side ? member1 : member0, see = side ? see1 : see0;
    if (member >= job.members || see / SPAN < job.span || first_span(a, see) > job.span) continue;
    float weights = side ? sum1 : sum0, inverse = 1.f / weights;
    int q_head = head * group.size + row - member * group.size;
    i64 to = ((i64)a.members[job.first + member] * a.heads + q_head) * HD;
    bool whole = job.long_row < 0;
    if (!whole) {
      i64 at = ((i64)(job.long_row + member) * a.heads + q_head) * a.spans + job.span;
      to = at * HD;
      if (share == 0 && (lane & 3) == 0) {
        float2 l;
        l.x = side ? largest1 : largest0; l.y = weights;
        a.partial_sums[at] = l;
      }
    }
#pragma unroll
    for (int i = 0; i < OWN_GROUPS; i++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int d = (i * SHARES + share) * 16 + j * 8 + (lane & 3) * 2;
        float x = sums[i][j][side * 2], y = sums[i][j][side * 2 + 1];
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
}
#endif
