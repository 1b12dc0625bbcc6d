// out[m][n] = sum over k of x[m][k] * weight[n][k], added to what `out` holds where `add` is set.
//
// weight is [columns, inner] in f32, f16 or bf16; x is [rows, inner] in the same format. `out` is
// f32, or of out_format where nothing is added. Each sum runs over ascending k by fused
// multiply-adds in f32, whatever the tile: every kernel here gives the same bits.

struct Product {
  const void* x; const void* weight; void* out;
  int rows, columns, inner, format, out_format, add;
};

// Four terms of a line of a matrix in `format`, from term k on; zeros beyond its end.
DEV float4 terms(const void* data, int format, int line, int lines, int k, int inner) {
  float4 v;
  v.x = v.y = v.z = v.w = 0.f;
  if (line >= lines || k >= inner) return v;
  i64 at = (i64)line * inner + k;
  if (inner % 4 == 0) {
    float2 a = load2(data, format, at), b = load2(data, format, at + 2);
    v.x = a.x; v.y = a.y; v.z = b.x; v.w = b.y;
    if (format == FORMAT_F32) v = *(const float4*)((const float*)data + at);
  } else {
    v.x = element(data, format, at);
    if (k + 1 < inner) v.y = element(data, format, at + 1);
    if (k + 2 < inner) v.z = element(data, format, at + 2);
    if (k + 3 < inner) v.w = element(data, format, at + 3);
  }
  return v;
}

DEV void finish(const Product& p, int row, int column, float sum) {
  i64 to = (i64)row * p.columns + column;
  if (p.add) ((float*)p.out)[to] += sum;
  else put(p.out, p.out_format, to, sum);
}

// Tiles of DOWN * OWN rows and ACROSS * OWN columns by DOWN * ACROSS threads, OWN x OWN outputs
// each in groups of four. The next STEP terms are fetched while one STEP is summed. Terms beyond
// the end are zeros, which change no sum.
template <int DOWN, int ACROSS, int OWN> DEV void product_tile(const Product& p) {
  const int THREADS = DOWN * ACROSS, ROWS = DOWN * OWN, COLUMNS = ACROSS * OWN, STEP = 16, QUARTERS = STEP / 4;
  const int X_OWN = ROWS * QUARTERS / THREADS, W_OWN = COLUMNS * QUARTERS / THREADS;
  __shared__ __align__(16) float xs[2][STEP][ROWS + 4], ws[2][STEP][COLUMNS + 4];
  int row0 = blockIdx.y * ROWS, column0 = blockIdx.x * COLUMNS, t = threadIdx.x;
  int r = t / ACROSS, c = t % ACROSS;
  float sum[OWN][OWN];
#pragma unroll
  for (int i = 0; i < OWN; i++)
#pragma unroll
    for (int j = 0; j < OWN; j++) sum[i][j] = 0.f;
  float4 x_next[X_OWN], w_next[W_OWN];
  for (int k0 = -STEP, stage = 1; k0 < p.inner; k0 += STEP, stage ^= 1) {
    bool more = k0 + STEP < p.inner;
    if (more) {
#pragma unroll
      for (int n = 0; n < X_OWN; n++) {
        int i = t + n * THREADS;
        x_next[n] = terms(p.x, p.format, row0 + i / QUARTERS, p.rows, k0 + STEP + i % QUARTERS * 4, p.inner);
      }
#pragma unroll
      for (int n = 0; n < W_OWN; n++) {
        int i = t + n * THREADS;
        w_next[n] = terms(p.weight, p.format, column0 + i / QUARTERS, p.columns, k0 + STEP + i % QUARTERS * 4, p.inner);
      }
    }
    if (k0 >= 0) {
#pragma unroll
      for (int k = 0; k < STEP; k++) {
        float4 a[OWN / 4], b[OWN / 4];
#pragma unroll
        for (int i = 0; i < OWN / 4; i++) {
          a[i] = *(const float4*)&xs[stage][k][(i * DOWN + r) * 4];
          b[i] = *(const float4*)&ws[stage][k][(i * ACROSS + c) * 4];
        }
#pragma unroll
        for (int i = 0; i < OWN; i++)
#pragma unroll
          for (int j = 0; j < OWN; j++) sum[i][j] = fmaf(((const float*)&a[i / 4])[i % 4], ((const float*)&b[j / 4])[j % 4], sum[i][j]);
      }
    }
    if (more) {
#pragma unroll
      for (int n = 0; n < X_OWN; n++) {
        int i = t + n * THREADS, line = i / QUARTERS, k = i % QUARTERS * 4;
        xs[stage ^ 1][k][line] = x_next[n].x; xs[stage ^ 1][k + 1][line] = x_next[n].y;
        xs[stage ^ 1][k + 2][line] = x_next[n].z; xs[stage ^ 1][k + 3][line] = x_next[n].w;
      }
#pragma unroll
      for (int n = 0; n < W_OWN; n++) {
        int i = t + n * THREADS, line = i / QUARTERS, k = i % QUARTERS * 4;
        ws[stage ^ 1][k][line] = w_next[n].x; ws[stage ^ 1][k + 1][line] = w_next[n].y;
        ws[stage ^ 1][k + 2][line] = w_next[n].z; ws[stage ^ 1][k + 3][line] = w_next[n].w;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < OWN; i++)
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      int row = row0 + (i / 4 * DOWN + r) * 4 + i % 4, column = column0 + (j / 4 * ACROSS + c) * 4 + j % 4;
      if (row < p.rows && column < p.columns) finish(p, row, column, sum[i][j]);
    }
}

// grid: columns / 128, rows / 128.
KERNEL(256) product_large(Product p) { product_tile<16, 16, 8>(p); }
// grid: columns / 64, rows / 64.
KERNEL(256) product_medium(Product p) { product_tile<16, 16, 4>(p); }
// grid: columns / 32, rows / 32.
KERNEL(64) product_small(Product p) { product_tile<8, 8, 4>(p); }

// A thread for each of 16 x 16 outputs: few rows. grid: columns / 16, rows / 16.
KERNEL(256) product_few(Product p) {
  const int STEP = 64;
  __shared__ float xs[STEP][17], ws[STEP][17];
  int row0 = blockIdx.y * 16, column0 = blockIdx.x * 16, t = threadIdx.x, r = t / 16, c = t % 16;
  float sum = 0.f;
  for (int k0 = 0; k0 < p.inner; k0 += STEP) {
    int line = t / 16, k = t % 16 * 4;
    float4 x = terms(p.x, p.format, row0 + line, p.rows, k0 + k, p.inner);
    float4 w = terms(p.weight, p.format, column0 + line, p.columns, k0 + k, p.inner);
    __syncthreads();
    xs[k][line] = x.x; xs[k + 1][line] = x.y; xs[k + 2][line] = x.z; xs[k + 3][line] = x.w;
    ws[k][line] = w.x; ws[k + 1][line] = w.y; ws[k + 2][line] = w.z; ws[k + 3][line] = w.w;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STEP; i++) sum = fmaf(xs[i][r], ws[i][c], sum);
  }
  if (row0 + r < p.rows && column0 + c < p.columns) finish(p, row0 + r, column0 + c, sum);
}

// Counts elements whose bits differ.
KERNEL(256) compare(const u32* a, const u32* b, i64 elements, u32* differing) {
  u32 count = 0;
  for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < elements; i += (i64)gridDim.x * 256) count += a[i] != b[i];
  for (int m = 16; m; m >>= 1) count += __shfl_xor_sync(WARP, count, m);
  if ((threadIdx.x & 31) == 0 && count) atomicAdd(differing, count);
}
