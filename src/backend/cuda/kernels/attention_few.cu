// Blocks of 16 query rows of one key/value head over one span: few rows, many sequences. Four warps
// share the rows; each computes the scores of a quarter of a tile's tokens and the sums of a share of
// the elements. Elements are read as they are stored and widened on their way to the tensor cores.

#define FEW_STAGES 2
// Blocks that should share a multiprocessor: more hide each other's waits, as long as registers
// suffice.
#define FEW_BLOCKS (EXACT || HD > 128 ? 1 : K_BYTES && V_BYTES ? 4 : 3)
#define STRIDE (HDP + 8)                                       // halves per row: rows fall on different banks
#define BYTE_STRIDE (HDP / 16 % 2 ? HDP : HDP + 16)            // bytes per row of one-byte elements, likewise
#define K_ROW (K_BYTES ? BYTE_STRIDE : STRIDE * 2)
#define V_ROW (V_BYTES ? BYTE_STRIDE : STRIDE * 2)
#define WEIGHTS (TILE + 8)                                     // halves per row of weights
#define KEPT (HDP <= 128)                                      // queries stay in registers
#define GROUPS (HDP / 16)                                      // 16 elements each

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

// Starts to copy one side of the tile at `token0` as it is stored to rows of ROW bytes; what lies
// beyond `last` becomes zero: whatever bytes are there never enter arithmetic. `pages` are the
// addresses of the tile's pages.
template <int THREADS, int WIDTH, int ROW> DEV void fetch(const u64* pages, u32 elements, int head, int token0, int last, char* to) {
  const int PIECE = WIDTH % 16 ? 8 : 16, PIECES = WIDTH / PIECE;  // per token
  const int COUNT = TILE * PIECES;
  int thread = threadIdx.x;
#pragma unroll
  for (int j = 0; j < (COUNT + THREADS - 1) / THREADS; j++) {
    int i = j * THREADS + thread, token = i / PIECES, c = i % PIECES;
    if (COUNT % THREADS != 0 && i >= COUNT) break;
    bool stored = token0 + token <= last;
    u64 from = pages[stored ? token / PAGE : 0] + elements + ((u64)head * PAGE + token % PAGE) * WIDTH + c * PIECE;
    char* at = to + token * ROW + c * PIECE;
    if (PIECE == 16) copy_async(at, (const void*)from, stored ? 16 : 0);
    else copy_async_half(at, (const void*)from, stored ? 8 : 0);
  }
}

#define FEW_TILE (TILE * (K_ROW + V_ROW))

extern "C" __global__ void __launch_bounds__(128, FEW_BLOCKS) attend_few(Attention a) {
  const int THREADS = 128, ROWS = 16;
  extern __shared__ uint4 memory[];
  char* tiles = (char*)memory;                                        // [FEW_STAGES] of keys, then values
  char* queries = tiles + FEW_STAGES * FEW_TILE;                      // [PARTS][ROWS][STRIDE] halves
  char* weights_at = queries + PARTS * ROWS * STRIDE * 2;             // [PARTS][ROWS][WEIGHTS] halves
  float* tops = (float*)(weights_at + PARTS * ROWS * WEIGHTS * 2);    // [4][ROWS], largest scores, at the end weights
  Scales* scales = (Scales*)(tops + 4 * ROWS);                        // [2]
  u64* addresses = (u64*)(scales + 2);                                // [SPAN / PAGE]

  const Job job = a.jobs[blockIdx.x];
  int head = blockIdx.y, group = a.heads / a.kv_heads, last = job.last;
  const Page* pages = a.table + (i64)job.slot * a.max_pages;
  int thread = threadIdx.x, across = thread >> 5, lane = thread & 31;
  bool changing = a.k.dynamic || a.v.dynamic;
  int token0 = job.span * SPAN, count = last / TILE + 1 - job.span * TILES;
  if (count > TILES) count = TILES;

  for (int i = thread; i < count * (TILE / PAGE); i += THREADS)
    addresses[i] = token0 + i * PAGE <= last ? pages[token0 / PAGE + i].stored : 0;
  if (HD < HDP)
    for (int i = thread; i < FEW_STAGES * TILE; i += THREADS) {
      char* tile = tiles + i / TILE * FEW_TILE;
      for (int d = HD; d < HDP; d++) {
        if (K_BYTES) tile[i % TILE * K_ROW + d] = 0;
        else ((u16*)(tile + i % TILE * K_ROW))[d] = 0;
        if (V_BYTES) tile[TILE * K_ROW + i % TILE * V_ROW + d] = 0;
        else ((u16*)(tile + TILE * K_ROW + i % TILE * V_ROW))[d] = 0;
      }
    }
  __syncthreads();
  auto start = [&](int tile) {
    char* to = tiles + tile % FEW_STAGES * FEW_TILE;
    const u64* from = addresses + tile * (TILE / PAGE);
    fetch<THREADS, HD * (K_BYTES ? 1 : 2), K_ROW>(from, a.k.elements, head, token0 + tile * TILE, last, to);
    fetch<THREADS, HD * (V_BYTES ? 1 : 2), V_ROW>(from, a.v.elements, head, token0 + tile * TILE, last, to + TILE * K_ROW);
  };
  start(0);
  copies_end();
  float scale_read = 1.f;
  if (changing) {
    put_scale(a, scales, thread, read_scale(a, pages, head, token0, last, thread));
    scale_read = read_scale(a, pages, head, token0 + TILE, last, thread);
  }
  float constant_key = a.factor * unscaled(a.k);
  put_queries<ROWS, THREADS>(a, job, head, 0, thread, [&](int part, int r, int t) {
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
  int member0 = row0 / group, member1 = row1 / group;
  int see0 = member0 < job.members ? a.rows[a.members[job.first + member0]].y : last;
  int see1 = member1 < job.members ? a.rows[a.members[job.first + member1]].y : last;
  const int OWN = (GROUPS + 3) / 4;                                   // groups of elements of a warp
  float sums[OWN][2][4];
#pragma unroll
  for (int i = 0; i < OWN; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) sums[i][j >> 2][j & 3] = 0.f;
  float largest0 = LOWEST, largest1 = LOWEST, weights0 = 0.f, weights1 = 0.f;

  for (int tile = 0; tile < count; tile++) {
    copies_wait<0>();
    __syncthreads();
    if (tile + 1 < count) {
      start(tile + 1);
      copies_end();
      if (changing) {
        put_scale(a, scales + ((tile + 1) & 1), thread, scale_read);
        scale_read = read_scale(a, pages, head, token0 + (tile + 2) * TILE, last, thread);
      }
    }
    const char* keys = tiles + tile % FEW_STAGES * FEW_TILE;
    const char* values = keys + TILE * K_ROW;
    const Scales* own = scales + (tile & 1);

    // Scores of tokens 16 * across on.
    float s[2][4];
#pragma unroll
    for (int j = 0; j < 8; j++) s[j >> 2][j & 3] = 0.f;
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--)
#pragma unroll
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

    float top0 = LOWEST, top1 = LOWEST;
    int beyond0 = see0 - token0 - tile * TILE, beyond1 = see1 - token0 - tile * TILE;  // last visible token of the tile
    bool masked = __any_sync(WARP, beyond0 < TILE - 1 || beyond1 < TILE - 1);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int t = across * 16 + n * 8 + (lane & 3) * 2 + j;
        float key = changing ? own->key[t] : constant_key, shift = changing ? own->shift[t] : 0.f;
        s[n][j] = fmaf(s[n][j], key, shift);
        s[n][j + 2] = fmaf(s[n][j + 2], key, shift);
        if (masked) {
          if (t > beyond0) s[n][j] = NEG_INF;
          if (t > beyond1) s[n][j + 2] = NEG_INF;
        }
        top0 = fmaxf(top0, s[n][j]);
        top1 = fmaxf(top1, s[n][j + 2]);
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
      for (int j = 0; j < 2; j++) {
        float inverse = changing ? own->inverse[across * 16 + n * 8 + (lane & 3) * 2 + j] : 1.f;
        s[n][j] = power(s[n][j] - top0);
        s[n][j + 2] = power(s[n][j + 2] - top1);
        weights0 = fmaf(s[n][j], inverse, weights0);
        weights1 = fmaf(s[n][j + 2], inverse, weights1);
      }
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
    __syncthreads();

#pragma unroll
    for (int ks = 0; ks < 4; ks += 2) {
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
          put2(a, to + d, finish(x, weights, scale), finish(y, weights, scale));
        } else {
          float2 v;
          v.x = x; v.y = y;
          *(float2*)(a.partial + to + d) = v;
        }
      }
  }
}
