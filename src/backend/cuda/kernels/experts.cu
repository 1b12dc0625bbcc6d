// Products of rows and their experts' weights by tensor cores. A block takes a tile of rows of one
// expert and some of that expert's outputs; every sum runs over ascending k in steps of 16, whatever the
// tile, by the same instruction: all kernels here give the same bits for a row. inner is a multiple of
// 8, columns of 2.
//
// Rows and weights are copied to shared memory, 64 terms of each at a time, several of these steps
// ahead of those that are multiplied. Pieces of 16 bytes stand swapped within a line, by the line's
// number: lines that are read together fall on different banks.

#define STEP 64
#define LINE (STEP * 2)  // bytes of a line's terms

DEV u32 place(int line, int piece) { return line * LINE + ((piece ^ (line & 7)) << 4); }
// The tile of a block, and its first column.
struct Place {
  int4 tile;
  int column0;
  bool there;
};
DEV Place place_of(const ExpertProduct& p, int width) {
  Place at;
  at.there = blockIdx.x / p.column_blocks < *p.tile_count;
  if (at.there) at.tile = p.tiles[blockIdx.x / p.column_blocks];
  at.column0 = blockIdx.x % p.column_blocks * width;
  return at;
}

// Copies of ROWS rows and, behind them, OUTS lines of weights to one of STAGES stages. Where gates and
// ups are multiplied, every GROUP of lines are half gates, half the ups that belong to them.
template <bool GATED, int ROWS, int OUTS, int GROUP, int THREADS, int STAGES> struct Copies {
  static const int LINES = THREADS / 8, STAGE = (ROWS + OUTS) * LINE;  // LINES are copied at a time
  static const int X_OWN = (ROWS + LINES - 1) / LINES, W_OWN = (OUTS + LINES - 1) / LINES;
  static const u32 NONE = 0xffffffffu;
  const uint4* x;
  const uint4* weight;
  u32 x_from[X_OWN], w_from[W_OWN];  // this thread's first piece of every line of its own
  u32 base;
  int pieces, steps, piece, first_line;

  DEV_MEMBER Copies(const ExpertProduct& p, const Place& at, u32 memory) {
    piece = threadIdx.x & 7;
    first_line = threadIdx.x >> 3;
    base = memory;
    pieces = p.inner / 8;
    steps = (p.inner + STEP - 1) / STEP;
    x = (const uint4*)p.x;
    weight = (const uint4*)p.weight + (i64)at.tile.x * (GATED ? 2 : 1) * p.columns * pieces;
#pragma unroll
    for (int i = 0; i < X_OWN; i++) {
      int line = first_line + i * LINES;
      int row = p.by_pair || line >= at.tile.z ? at.tile.y + line : p.order[at.tile.y + line] / p.chosen;
      x_from[i] = line < at.tile.z ? (u32)row * pieces + piece : NONE;
    }
#pragma unroll
    for (int i = 0; i < W_OWN; i++) {
      int line = first_line + i * LINES, within = line % GROUP, column = at.column0 + line;
      bool up = GATED && within >= GROUP / 2;
      if (GATED) column = at.column0 + line / GROUP * (GROUP / 2) + within % (GROUP / 2);
      w_from[i] = column < p.columns ? (u32)(up ? p.columns + column : column) * pieces + piece : NONE;
    }
  }
  DEV_MEMBER u32 stage(int step) const { return base + step % STAGES * STAGE; }
  // Starts the copies of a step; zeros stand where a row, a column or a term is not there.
  DEV_MEMBER void start(int step) const {
    if (step < steps) {
      int k = step * (STEP / 8);
      bool within = k + piece < pieces;
#pragma unroll
      for (int i = 0; i < X_OWN; i++) {
        int line = first_line + i * LINES;
        bool there = within && x_from[i] != NONE;
        if (ROWS % LINES == 0 || line < ROWS) copy_piece<16>(stage(step) + place(line, piece), (u64)(there ? x + x_from[i] + k : x), there ? 16 : 0);
      }
#pragma unroll
      for (int i = 0; i < W_OWN; i++) {
        int line = first_line + i * LINES;
        bool there = within && w_from[i] != NONE;
        if (OUTS % LINES == 0 || line < OUTS) copy_piece<16>(stage(step) + place(ROWS + line, piece), (u64)(there ? weight + w_from[i] + k : weight), there ? 16 : 0);
      }
    }
    copies_end();
  }
};

// Writes sums of 8 columns each, of which a thread holds two of row `line` and of row `line` + 8;
// `column` is their first, of gates where there are gates.
template <bool GATED, int NS> DEV void finish_sums(const ExpertProduct& p, const Place& at, int line, int column, const float* sums) {
  int own = (threadIdx.x & 3) * 2;
#pragma unroll
  for (int half = 0; half < 2; half++, line += 8) {
    if (line >= at.tile.z) continue;
    i64 to = (i64)(GATED ? at.tile.y + line : p.order[at.tile.y + line]) * p.columns;
#pragma unroll
    for (int n = 0; n < (GATED ? NS / 2 : NS); n++) {
      int c = column + n * 8 + own;
      const float *s = sums + n * 4 + half * 2, *u = s + NS / 2 * 4;
      if (c >= p.columns) continue;
      if (GATED) put2(p.out, p.format, to + c, activated(p.activation, s[0]) * u[0], activated(p.activation, s[1]) * u[1]);
      else put2(p.out, FORMAT_F32, to + c, s[0], s[1]);
    }
  }
}

// DOWN x ACROSS warps take ROWS rows and OUTS outputs.
template <bool GATED, int ROWS, int OUTS, int DOWN, int ACROSS, int STAGES> DEV void expert_product(const ExpertProduct& p) {
  const int OWN_ROWS = ROWS / DOWN, OWN_OUTS = OUTS / ACROSS, MS = OWN_ROWS / 16, NS = OWN_OUTS / 8;
  extern __shared__ __align__(1024) char memory[];
  Place at = place_of(p, GATED ? OUTS / 2 : OUTS);
  if (!at.there) return;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, down = warp / ACROSS, across = warp % ACROSS;
  Copies<GATED, ROWS, OUTS, OWN_OUTS, DOWN * ACROSS * 32, STAGES> copies(p, at, shared_address(memory));
  float sums[MS][NS * 4];
#pragma unroll
  for (int m = 0; m < MS; m++)
#pragma unroll
    for (int i = 0; i < NS * 4; i++) sums[m][i] = 0.f;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) copies.start(s);
  int a_line = down * OWN_ROWS + (lane & 15), a_piece = lane >> 4;
  int b_line = ROWS + across * OWN_OUTS + (lane & 7) + (lane >> 4) * 8, b_piece = (lane >> 3) & 1;
  for (int step = 0; step < copies.steps; step++) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
    __syncthreads();
    copies.start(step + STAGES - 1);
    u32 stage = copies.stage(step);
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
          multiply(sums[m] + n * 8, a[m], b[0], b[1]);
          multiply(sums[m] + n * 8 + 4, a[m], b[2], b[3]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < MS; m++)
    finish_sums<GATED, NS>(p, at, down * OWN_ROWS + m * 16 + (lane >> 2), at.column0 + across * (GATED ? OWN_OUTS / 2 : OWN_OUTS), sums[m]);
}

extern "C" __global__ void __launch_bounds__(128, 2) expert_32_gated(ExpertProduct p) { expert_product<true, 32, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) expert_32_plain(ExpertProduct p) { expert_product<false, 32, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) expert_64_gated(ExpertProduct p) { expert_product<true, 64, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) expert_64_plain(ExpertProduct p) { expert_product<false, 64, 128, 1, 4, 4>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) expert_128_gated(ExpertProduct p) { expert_product<true, 128, 256, 2, 4, 3>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) expert_128_plain(ExpertProduct p) { expert_product<false, 128, 256, 2, 4, 3>(p); }
