// Recurrent layers: a causal convolution, then the gated delta rule, token by token in one fixed order.
//
// A run is the rows of one slot, which stand side by side in ascending order of position. A thread
// group sees nothing of other runs, and every sum has an order that depends on the layer's sizes only.

// What all kernels of a layer work on; C = channels = 2 * key_heads * key_dim + V, V = value_heads *
// value_dim, P = C + V + 2 * value_heads.
struct Recurrent {
  float* packed;       // [rows][P]: inputs of the convolution, gate of the output, b, a
  const float* factors;// [kernel][C], those of the own token last
  const float* decay;  // [value_heads]: what steps are multiplied by
  const float* bias;   // [value_heads]: added to a
  const float* norm;   // [value_dim]
  const int2* rows;    // [rows]: slot, position
  int* runs;           // [slots]: first rows of the runs, then -1
  float* matrices;     // [slots][value_heads][value_dim][key_dim]
  u16* inputs;         // [slots][kernel - 1][C], the oldest first, in the native format
  float* y;            // [rows][C]: convolved queries, keys and values; values become outputs
  void* out;           // [rows][V]
  int row_count, slots, key_heads, value_heads, key_dim, value_dim, kernel, native, out_format;
  float eps;
};

DEV int channels_of(const Recurrent& r) { return 2 * r.key_heads * r.key_dim + r.value_heads * r.value_dim; }
DEV i64 width_of(const Recurrent& r) { return channels_of(r) + r.value_heads * r.value_dim + 2 * r.value_heads; }
DEV bool begins(const Recurrent& r, int row) { return row == 0 || r.rows[row - 1].x != r.rows[row].x; }

// Rows of the same run before `row`, `most` at most.
DEV int rows_before(const Recurrent& r, int row, int most) {
  int slot = r.rows[row].x, n = 0;
  while (n < most && row - n > 0 && r.rows[row - n - 1].x == slot) n++;
  return n;
}

// An input of the convolution as it is kept.
DEV u16 kept_input(const Recurrent& r, i64 row, int c) { return f32_to_half(r.native, r.packed[row * width_of(r) + c]); }

// Where runs begin, in any order; grid: 1.
KERNEL(1024) find_runs(Recurrent r) {
  __shared__ int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  for (int row = threadIdx.x; row < r.row_count; row += 1024)
    if (begins(r, row)) {
      int at = atomicAdd(&found, 1);
      if (at < r.slots) r.runs[at] = row;
    }
  __syncthreads();
  for (int i = found + threadIdx.x; i < r.slots; i += 1024) r.runs[i] = -1;
}

// y = silu(sum over taps of factor * input); grid: rows * parts, a part being 256 channels.
KERNEL(256) convolve(Recurrent r, int parts) {
  int row = blockIdx.x / parts, c = (blockIdx.x % parts) * 256 + threadIdx.x, channels = channels_of(r);
  if (c >= channels) return;
  int2 at = r.rows[row];
  int most = r.kernel - 1, before = rows_before(r, row, most);
  const u16* kept = r.inputs + (i64)at.x * most * channels;
  float sum = 0.f;
  for (int tap = 0; tap < r.kernel; tap++) {
    int back = most - tap;
    if (at.y < back) continue;
    u16 x = before >= back ? kept_input(r, row - back, c) : kept[(i64)(most + before - back) * channels + c];
    sum = fmaf(half_to_f32(r.native, x), r.factors[(i64)tap * channels + c], sum);
  }
  r.y[(i64)row * channels + c] = silu(sum);
}

// Keeps the last inputs of every run, after `convolve` has read the older ones; grid as there.
KERNEL(256) keep_inputs(Recurrent r, int parts) {
  int row = blockIdx.x / parts, c = (blockIdx.x % parts) * 256 + threadIdx.x, channels = channels_of(r);
  if (c >= channels || (row + 1 < r.row_count && !begins(r, row + 1))) return;
  int most = r.kernel - 1, fresh = min(rows_before(r, row, most) + 1, most);
  u16* kept = r.inputs + (i64)r.rows[row].x * most * channels;
  for (int i = 0; i < most; i++)
    kept[(i64)i * channels + c] = i + fresh < most ? kept[(i64)(i + fresh) * channels + c] : kept_input(r, row - (most - 1 - i), c);
}

// Query and key heads of y are divided by their lengths, queries also by sqrt(key_dim); b becomes the
// rate sigmoid(b), a the factor exp(decay * softplus(a + bias)). A warp for each of 2 * key_heads heads of
// a row and for every 32 value heads; grid: rows * parts, a part being 8 warps.
KERNEL(256) prepare_heads(Recurrent r, int parts) {
  int row = blockIdx.x / parts, item = (blockIdx.x % parts) * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (item < 2 * r.key_heads) {
    float* v = r.y + (i64)row * channels_of(r) + item * r.key_dim;
    float sum = 0.f;
    for (int i = lane; i < r.key_dim; i += 32) sum = fmaf(v[i], v[i], sum);
    sum = warp_sum(sum);
    float inverse = 1.f / sqrtf(sum + 1e-6f);
    if (item < r.key_heads) inverse = inverse / sqrtf((float)r.key_dim);
    for (int i = lane; i < r.key_dim; i += 32) v[i] *= inverse;
    return;
  }
  int head = (item - 2 * r.key_heads) * 32 + lane;
  if (head >= r.value_heads) return;
  float* b = r.packed + (row + 1) * width_of(r) - 2 * r.value_heads;
  float* a = b + r.value_heads;
  float x = a[head] + r.bias[head];
  float step = x > 20.f ? x : log1pf(expf(x));
  a[head] = expf(r.decay[head] * step);
  b[head] = 1.f / (1.f + expf(-b[head]));
}

// Tokens whose queries, keys and values are brought in at once.
#define TILE 8
// Threads that share an element of the output, and elements of a block.
#define SHARERS 8
#define COLUMNS 16

// The gated delta rule over key vectors of up to 32 * QUADS elements. A block advances 16 elements of the
// output of one head through a run; 8 threads keep a row of the matrix, 4 neighbouring elements of every
// 32 each. What is beyond key_dim is zero.
template <int QUADS> DEV void advance(const Recurrent& r) {
  __shared__ __align__(16) float keys[TILE][QUADS * 32], queries[TILE][QUADS * 32];
  __shared__ float values[TILE][COLUMNS], factors[TILE], rates[TILE];
  int parts = (r.value_dim + COLUMNS - 1) / COLUMNS, t = threadIdx.x;
  int part = blockIdx.x % parts, head = blockIdx.x / parts % r.value_heads;
  int row = r.runs[blockIdx.x / parts / r.value_heads];
  if (row < 0) return;
  int slot = r.rows[row].x, channels = channels_of(r), all_keys = r.key_heads * r.key_dim;
  int key_head = head / (r.value_heads / r.key_heads);
  int share = t % SHARERS, own = t / SHARERS, column = part * COLUMNS + own;
  bool is_real = column < r.value_dim;
  float* matrix = r.matrices + (((i64)slot * r.value_heads + head) * r.value_dim + column) * r.key_dim;
  float s[QUADS * 4];
  bool is_first = r.rows[row].y == 0;
#pragma unroll
  for (int j = 0; j < QUADS; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int i = j * 32 + share * 4 + e;
      s[4 * j + e] = !is_first && is_real && i < r.key_dim ? matrix[i] : 0.f;
    }
  i64 width = width_of(r);
  for (bool more = true; more;) {
    int count = 0;
    while (count < TILE && row + count < r.row_count && r.rows[row + count].x == slot) count++;
    more = count == TILE;
    __syncthreads();
    for (int i = t; i < count * QUADS * 32; i += SHARERS * COLUMNS) {
      int token = i / (QUADS * 32), d = i % (QUADS * 32);
      const float* y = r.y + (i64)(row + token) * channels + key_head * r.key_dim + d;
      queries[token][d] = d < r.key_dim ? y[0] : 0.f;
      keys[token][d] = d < r.key_dim ? y[all_keys] : 0.f;
    }
    for (int i = t; i < count * COLUMNS; i += SHARERS * COLUMNS) {
      int token = i / COLUMNS, d = part * COLUMNS + i % COLUMNS;
      values[token][i % COLUMNS] = d < r.value_dim ? r.y[(i64)(row + token) * channels + 2 * all_keys + head * r.value_dim + d] : 0.f;
    }
    if (t < count) {
      const float* ba = r.packed + (row + t + 1) * width - 2 * r.value_heads;
      rates[t] = ba[head];
      factors[t] = ba[r.value_heads + head];
    }
    __syncthreads();
    for (int token = 0; token < count; token++) {
      float factor = factors[token];
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
      float4 k[QUADS];
#pragma unroll
      for (int j = 0; j < QUADS; j++) {
        k[j] = *(const float4*)&keys[token][j * 32 + share * 4];
#pragma unroll
        for (int e = 0; e < 4; e++) s[4 * j + e] *= factor;
        sums[0] = fmaf(s[4 * j], k[j].x, sums[0]); sums[1] = fmaf(s[4 * j + 1], k[j].y, sums[1]);
        sums[2] = fmaf(s[4 * j + 2], k[j].z, sums[2]); sums[3] = fmaf(s[4 * j + 3], k[j].w, sums[3]);
      }
      float known = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      for (int m = SHARERS / 2; m; m >>= 1) known += __shfl_xor_sync(WARP, known, m);
      float delta = (values[token][own] - known) * rates[token];
      sums[0] = sums[1] = sums[2] = sums[3] = 0.f;
#pragma unroll
      for (int j = 0; j < QUADS; j++) {
        float4 q = *(const float4*)&queries[token][j * 32 + share * 4];
        s[4 * j] = fmaf(k[j].x, delta, s[4 * j]); s[4 * j + 1] = fmaf(k[j].y, delta, s[4 * j + 1]);
        s[4 * j + 2] = fmaf(k[j].z, delta, s[4 * j + 2]); s[4 * j + 3] = fmaf(k[j].w, delta, s[4 * j + 3]);
        sums[0] = fmaf(s[4 * j], q.x, sums[0]); sums[1] = fmaf(s[4 * j + 1], q.y, sums[1]);
        sums[2] = fmaf(s[4 * j + 2], q.z, sums[2]); sums[3] = fmaf(s[4 * j + 3], q.w, sums[3]);
      }
      float o = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      for (int m = SHARERS / 2; m; m >>= 1) o += __shfl_xor_sync(WARP, o, m);
      // The value was read by this block alone.
      if (share == 0 && is_real) r.y[(i64)(row + token) * channels + 2 * all_keys + head * r.value_dim + column] = o;
    }
    row += count;
  }
#pragma unroll
  for (int j = 0; j < QUADS; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int i = j * 32 + share * 4 + e;
      if (is_real && i < r.key_dim) matrix[i] = s[4 * j + e];
    }
}

// grid: runs * value_heads * parts of 16 elements of the output.
KERNEL(128) delta_rule_32(Recurrent r) { advance<1>(r); }
KERNEL(128) delta_rule_128(Recurrent r) { advance<4>(r); }
KERNEL(128) delta_rule_256(Recurrent r) { advance<8>(r); }

// out = o / sqrt(mean(o^2) + eps) * norm * silu(z), a warp for each head of a row; grid: rows * parts, a
// part being 8 heads.
KERNEL(256) norm_and_gate(Recurrent r, int parts) {
  int row = blockIdx.x / parts, head = (blockIdx.x % parts) * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (head >= r.value_heads) return;
  int channels = channels_of(r), values = r.value_heads * r.value_dim, first = head * r.value_dim;
  const float* o = r.y + (i64)row * channels + channels - values + first;
  const float* z = r.packed + row * width_of(r) + channels + first;
  float sum = 0.f;
  for (int i = lane; i < r.value_dim; i += 32) sum = fmaf(o[i], o[i], sum);
  sum = warp_sum(sum);
  float inverse = 1.f / sqrtf(sum / (float)r.value_dim + r.eps);
  for (int i = lane; i < r.value_dim; i += 32)
    put(r.out, r.out_format, (i64)row * values + first + i, o[i] * inverse * r.norm[i] * silu(z[i]));
}

// x = x / (1 + exp(-gate)), in the format in which x lies.
KERNEL(256) gate_output(const float* gate, void* x, int format, i64 elements) {
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i < elements) put(x, format, i, element(x, format, i) / (1.f + expf(-gate[i])));
}
