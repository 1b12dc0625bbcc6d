// out[m][n] = sum over k of x[m][k] * weight[n][k], added to what `out` holds where `add` is set.
//
// weight is [columns, inner] in f32, f16 or bf16; x is [rows, inner] in the same format. `out` is
// f32, or of out_format where nothing is added. Each sum runs over ascending k by fused
// multiply-adds in f32, whatever the tile: every kernel here gives the same bits.

struct Product {
  const void* x; const void* weight; void* out;
  int rows, columns, inner, format, out_format, add;
};

// Tiles of TILE x TILE outputs by 256 threads, OWN x OWN of them each, STEP terms at a time.
template <int TILE, int OWN, int STEP> DEV void product_tile(const Product& p) {
  __shared__ float xs[STEP][TILE + 1], ws[STEP][TILE + 1];
  const int across = TILE / OWN;
  int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE, t = threadIdx.x;
  int r = t / across, c = t % across;
  float sum[OWN][OWN];
  for (int i = 0; i < OWN; i++) for (int j = 0; j < OWN; j++) sum[i][j] = 0.f;
  for (int k0 = 0; k0 < p.inner; k0 += STEP) {
    for (int i = t; i < TILE * STEP; i += 256) {
      int line = i / STEP, k = i % STEP, at = k0 + k;
      bool inside = at < p.inner;
      int row = row0 + line, column = column0 + line;
      xs[k][line] = inside && row < p.rows ? element(p.x, p.format, (i64)row * p.inner + at) : 0.f;
      ws[k][line] = inside && column < p.columns ? element(p.weight, p.format, (i64)column * p.inner + at) : 0.f;
    }
    __syncthreads();
    int terms = p.inner - k0 < STEP ? p.inner - k0 : STEP;
    for (int k = 0; k < terms; k++)
#pragma unroll
      for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < OWN; j++)
          sum[i][j] = fmaf(xs[k][r + i * across], ws[k][c + j * across], sum[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < OWN; i++)
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      int row = row0 + r + i * across, column = column0 + c + j * across;
      if (row < p.rows && column < p.columns) {
        i64 to = (i64)row * p.columns + column;
        if (p.add) ((float*)p.out)[to] += sum[i][j];
        else put(p.out, p.out_format, to, sum[i][j]);
      }
    }
}

// grid: columns / 64, rows / 64.
KERNEL(256) product_large(Product p) { product_tile<64, 4, 16>(p); }
// grid: columns / 32, rows / 32.
KERNEL(256) product_medium(Product p) { product_tile<32, 2, 32>(p); }
// grid: columns / 16, rows / 16.
KERNEL(256) product_small(Product p) { product_tile<16, 1, 64>(p); }

// Counts elements whose bits differ.
KERNEL(256) compare(const u32* a, const u32* b, i64 elements, u32* differing) {
  u32 count = 0;
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < elements; i += (i64)gridDim.x * 256) count += a[i] != b[i];
  for (int m = 16; m; m >>= 1) count += __shfl_xor_sync(WARP, count, m);
  if ((threadIdx.x & 31) == 0 && count) atomicAdd(differing, count);
}
