// Products of rows and their experts' weights by tensor cores. A block takes a tile of rows of one
// expert and some of that expert's outputs; every sum runs over ascending k in steps of 16, whatever the
// tile, by the same instruction: all kernels here give the same bits for a row.
//
// Rows and weights are copied to shared memory, 64 terms of each at a time, several of these steps
// ahead of those that are multiplied. Pieces of 16 bytes stand swapped within a line, by the line's
// number: lines that are read together fall on different banks.

#define STEP 64
#define LINE (STEP * 2)  // bytes of a line's terms

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV u32 place(int line, int piece) { return line * LINE + ((piece ^ (line & 7)) << 4); }
// Copies 16 bytes to shared memory, or zeros.
DEV void copy_piece(u32 to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEV void load_matrices(u32 r[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
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

// DOWN x ACROSS warps take ROWS rows and OUTS outputs; where gates and ups are multiplied, a warp's
// outputs are as many gates and, behind them, their ups. STAGES steps are in shared memory.
// inner is a multiple of 8, columns of 2.
template <bool GATED, int ROWS, int OUTS, int DOWN, int ACROSS, int STAGES> DEV void expert_product(const ExpertProduct& p) {
  const int THREADS = DOWN * ACROSS * 32, LINES = THREADS / 8;  // lines that are copied at a time
  const int OWN_ROWS = ROWS / DOWN, OWN_OUTS = OUTS / ACROSS, STAGE = (ROWS + OUTS) * LINE;
  const int MS = OWN_ROWS / 16, NS = OWN_OUTS / 8, WIDTH = GATED ? OUTS / 2 : OUTS;
  extern __shared__ __align__(128) char memory[];
  if (blockIdx.x / p.column_blocks >= *p.tile_count) return;
  int4 tile = p.tiles[blockIdx.x / p.column_blocks];
  int column0 = blockIdx.x % p.column_blocks * WIDTH, t = threadIdx.x, lane = t & 31, warp = t >> 5;
  int down = warp / ACROSS, across = warp % ACROSS;
  u32 base = shared_address(memory);
  int piece = t & 7, first_line = t >> 3;
  const u16* x = (const u16*)p.x;
  const u16* weight = (const u16*)p.weight + (i64)tile.x * (GATED ? 2 : 1) * p.columns * p.inner;

  // Where this thread's lines begin; -1 for those that are not there.
  i64 x_from[ROWS / LINES];
  i64 w_from[OUTS / LINES];
#pragma unroll
  for (int i = 0; i < ROWS / LINES; i++) {
    int line = first_line + i * LINES;
    i64 row = p.by_pair || line >= tile.z ? tile.y + line : p.order[tile.y + line] / p.chosen;
    x_from[i] = line < tile.z ? row * p.inner + piece * 8 : -1;
  }
#pragma unroll
  for (int i = 0; i < OUTS / LINES; i++) {
    int line = first_line + i * LINES, within = line % OWN_OUTS, column = column0 + line;
    bool up = GATED && within >= OWN_OUTS / 2;
    if (GATED) column = column0 + line / OWN_OUTS * (OWN_OUTS / 2) + within % (OWN_OUTS / 2);
    w_from[i] = column < p.columns ? (i64)(up ? p.columns + column : column) * p.inner + piece * 8 : -1;
  }
  int steps = (p.inner + STEP - 1) / STEP;
  auto start = [&](int step) {
    if (step < steps) {
      u32 stage = base + step % STAGES * STAGE;
      int k = step * STEP;
      bool within = k + piece * 8 < p.inner;
#pragma unroll
      for (int i = 0; i < ROWS / LINES; i++) {
        bool there = within && x_from[i] >= 0;
        copy_piece(stage + place(first_line + i * LINES, piece), there ? x + x_from[i] + k : x, there);
      }
#pragma unroll
      for (int i = 0; i < OUTS / LINES; i++) {
        bool there = within && w_from[i] >= 0;
        copy_piece(stage + place(ROWS + first_line + i * LINES, piece), there ? weight + w_from[i] + k : weight, there);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  float sums[MS][NS][4];
#pragma unroll
  for (int m = 0; m < MS; m++)
#pragma unroll
    for (int n = 0; n < NS; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[m][n][i] = 0.f;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) start(s);
  int a_line = down * OWN_ROWS + (lane & 15), a_piece = lane >> 4;
  int b_line = ROWS + across * OWN_OUTS + (lane & 7) + (lane >> 4) * 8, b_piece = (lane >> 3) & 1;
  for (int step = 0; step < steps; step++) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();
    start(step + STAGES - 1);
    u32 stage = base + step % STAGES * STAGE;
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
      u32 a[MS][4];
#pragma unroll
      for (int m = 0; m < MS; m++) load_matrices(a[m], stage + place(a_line + m * 16, k * 2 + a_piece));
#pragma unroll
      for (int n = 0; n < NS / 2; n++) {
        u32 b[4];
        load_matrices(b, stage + place(b_line + n * 16, k * 2 + b_piece));
#pragma unroll
        for (int m = 0; m < MS; m++) {
          multiply(sums[m][2 * n], a[m], b[0], b[1]);
          multiply(sums[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < MS; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int line = down * OWN_ROWS + m * 16 + half * 8 + (lane >> 2);
      if (line >= tile.z) continue;
      if (GATED) {
#pragma unroll
        for (int n = 0; n < NS / 2; n++) {
          int column = column0 + across * (OWN_OUTS / 2) + n * 8 + (lane & 3) * 2;
          const float *g = &sums[m][n][half * 2], *u = &sums[m][n + NS / 2][half * 2];
          if (column < p.columns)
            put2(p.out, p.format, (i64)(tile.y + line) * p.columns + column, activated(p.activation, g[0]) * u[0], activated(p.activation, g[1]) * u[1]);
        }
      } else {
        i64 to = (i64)p.order[tile.y + line] * p.columns;
#pragma unroll
        for (int n = 0; n < NS; n++) {
          int column = column0 + across * OWN_OUTS + n * 8 + (lane & 3) * 2;
          if (column < p.columns) put2(p.out, FORMAT_F32, to + column, sums[m][n][half * 2], sums[m][n][half * 2 + 1]);
        }
      }
    }
}

extern "C" __global__ void __launch_bounds__(128, 2) expert_32_gated(ExpertProduct p) { expert_product<true, 32, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) expert_32_plain(ExpertProduct p) { expert_product<false, 32, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) expert_64_gated(ExpertProduct p) { expert_product<true, 64, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) expert_64_plain(ExpertProduct p) { expert_product<false, 64, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) expert_128_gated(ExpertProduct p) { expert_product<true, 128, 256, 2, 4, 3>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) expert_128_plain(ExpertProduct p) { expert_product<false, 128, 256, 2, 4, 3>(p); }
