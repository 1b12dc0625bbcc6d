// Operations that treat every row, or every head vector, on its own. All tensors are f32,
// row-major [rows, width]. Reductions run over fixed lanes and a fixed tree: their order depends on
// the width only.

// x[i] = table[ids[i]]; grid: rows.
KERNEL(256) embed(const void* table, int format, const u32* ids, float* x, int width) {
  i64 from = (i64)ids[blockIdx.x] * width, to = (i64)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += 256) x[to + i] = element(table, format, from + i);
}

// out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight; grid: rows.
KERNEL(256) rms_norm(const float* x, const float* weight, float eps, float* out, int width) {
  __shared__ float sums[8];
  const float* row = x + (i64)blockIdx.x * width;
  float* to = out + (i64)blockIdx.x * width;
  int t = threadIdx.x;
  float sum = 0.f;
  for (int i = t; i < width; i += 256) sum = fmaf(row[i], row[i], sum);
  sum = warp_sum(sum);
  if ((t & 31) == 0) sums[t >> 5] = sum;
  __syncthreads();
  float total = 0.f;
  for (int i = 0; i < 8; i++) total += sums[i];
  float inverse = 1.f / sqrtf(total / (float)width + eps);
  for (int i = t; i < width; i += 256) to[i] = row[i] * inverse * weight[i];
}

// The same in place over `vectors` head vectors of `width`; a warp each.
KERNEL(256) rms_norm_heads(float* x, const float* weight, float eps, i64 vectors, int width) {
  i64 vector = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
  int lane = threadIdx.x & 31;
  if (vector >= vectors) return;
  float* v = x + vector * width;
  float sum = 0.f;
  for (int i = lane; i < width; i += 32) sum = fmaf(v[i], v[i], sum);
  sum = warp_sum(sum);
  float inverse = 1.f / sqrtf(sum / (float)width + eps);
  for (int i = lane; i < width; i += 32) v[i] = v[i] * inverse * weight[i];
}

// Rotates head vectors of width 2 * half: first half against second half, by the angles of the
// row's position (rows: slot, position). cos and sin are [positions, half].
KERNEL(256) rotary(float* x, const float* cos, const float* sin, const int2* rows, i64 pairs, int width, int half) {
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i >= pairs) return;
  int per_row = width / 2;
  i64 row = i / per_row;
  int pair = (int)(i % per_row), head = pair / half, d = pair % half;
  i64 angle = (i64)rows[row].y * half + d;
  float* v = x + row * width + head * 2 * half;
  float a = v[d], b = v[d + half], c = cos[angle], s = sin[angle];
  v[d] = a * c - b * s;
  v[d + half] = b * c + a * s;
}

// out = silu(gate) * up.
KERNEL(256) silu_mul(const float* gate, const float* up, float* out, i64 elements) {
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i >= elements) return;
  float g = gate[i];
  out[i] = g / (1.f + expf(-g)) * up[i];
}

// out[i] = x[rows[i]]; grid: rows.
KERNEL(256) gather(const float* x, const u32* rows, float* out, int width) {
  i64 from = (i64)rows[blockIdx.x] * width, to = (i64)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += 256) out[to + i] = x[from + i];
}

// x[i] += bias.
KERNEL(256) add_bias(float* x, const float* bias, i64 elements, int width) {
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i < elements) x[i] += bias[i % width];
}

// out = x in a 16-bit format.
KERNEL(256) to_half(const float* x, u16* out, i64 elements, int format) {
  i64 i = ((i64)blockIdx.x * 256 + threadIdx.x) * 4;
  if (i + 4 <= elements) {
    float4 v = *(const float4*)(x + i);
    uint2 h;
    h.x = f32_to_half(format, v.x) | (u32)f32_to_half(format, v.y) << 16;
    h.y = f32_to_half(format, v.z) | (u32)f32_to_half(format, v.w) << 16;
    *(uint2*)(out + i) = h;
  } else {
    for (; i < elements; i++) out[i] = f32_to_half(format, x[i]);
  }
}
