// Operations that treat every row, or every head vector, on its own. Tensors are row-major
// [rows, width], in f32 or in the 16-bit format of products; arithmetic is f32. Reductions run over
// fixed lanes and a fixed tree: their order depends on the width only.

// x[i] = table[ids[i]]; grid: rows.
KERNEL(256) embed(const void* table, int format, const u32* ids, float* x, int width) {
  i64 from = (i64)ids[blockIdx.x] * width, to = (i64)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += 256) x[to + i] = element(table, format, from + i);
}

// A thread's elements of a row: by four, of which it keeps the first, or one by one.
struct RowPart {
  const float* row; int width; bool by_four;
  float4 kept[4];
};
DEV RowPart row_part(const float* row, int width) {
  RowPart r;
  r.row = row; r.width = width; r.by_four = width % 4 == 0;
  return r;
}
// 1 / sqrt(mean(x^2) + eps) of a row, by all threads of a block.
DEV float inverse_norm(RowPart& r, float eps) {
  __shared__ float sums[8];
  int t = threadIdx.x;
  float sum = 0.f;
  if (r.by_four) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int i = t * 4 + j * 1024;
      if (i < r.width) {
        float4 v = r.kept[j] = *(const float4*)(r.row + i);
        sum = fmaf(v.x, v.x, sum); sum = fmaf(v.y, v.y, sum); sum = fmaf(v.z, v.z, sum); sum = fmaf(v.w, v.w, sum);
      }
    }
    for (int i = t * 4 + 4096; i < r.width; i += 1024) {
      float4 v = *(const float4*)(r.row + i);
      sum = fmaf(v.x, v.x, sum); sum = fmaf(v.y, v.y, sum); sum = fmaf(v.z, v.z, sum); sum = fmaf(v.w, v.w, sum);
    }
  } else {
    for (int i = t; i < r.width; i += 256) sum = fmaf(r.row[i], r.row[i], sum);
  }
  sum = warp_sum(sum);
  if ((t & 31) == 0) sums[t >> 5] = sum;
  __syncthreads();
  float total = 0.f;
  for (int i = 0; i < 8; i++) total += sums[i];
  return 1.f / sqrtf(total / (float)r.width + eps);
}
// Hands x * inverse * weight to `four` (element, four numbers) or to `one` (element, number).
template <class Four, class One> DEV void put_normed(const RowPart& r, const float* weight, float inverse, const Four& four, const One& one) {
  int t = threadIdx.x;
  auto normed = [&](int i, float4 v) {
    float4 w = *(const float4*)(weight + i);
    v.x = v.x * inverse * w.x; v.y = v.y * inverse * w.y; v.z = v.z * inverse * w.z; v.w = v.w * inverse * w.w;
    four(i, v);
  };
  if (r.by_four) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (t * 4 + j * 1024 < r.width) normed(t * 4 + j * 1024, r.kept[j]);
    for (int i = t * 4 + 4096; i < r.width; i += 1024) normed(i, *(const float4*)(r.row + i));
  } else {
    for (int i = t; i < r.width; i += 256) one(i, r.row[i] * inverse * weight[i]);
  }
}

// out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight; grid: rows.
KERNEL(256) rms_norm(const float* x, const float* weight, float eps, void* out, int format, int width) {
  i64 first = (i64)blockIdx.x * width;
  RowPart row = row_part(x + first, width);
  float inverse = inverse_norm(row, eps);
  put_normed(row, weight, inverse, [&](int i, float4 v) { put4(out, format, first + i, v.x, v.y, v.z, v.w); },
    [&](int i, float v) { put(out, format, first + i, v); });
}

// residual[i] += x[i] / sqrt(mean(x[i]^2) + eps) * weight; grid: rows.
KERNEL(256) rms_norm_add(const float* x, const float* weight, float eps, float* residual, int width) {
  RowPart row = row_part(x + (i64)blockIdx.x * width, width);
  float inverse = inverse_norm(row, eps);
  float* to = residual + (i64)blockIdx.x * width;
  put_normed(row, weight, inverse, [&](int i, float4 v) {
    float4 sum = *(const float4*)(to + i);
    sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
    *(float4*)(to + i) = sum;
  }, [&](int i, float v) { to[i] += v; });
}

// x *= factor.
KERNEL(256) scale(float* x, float factor, i64 elements) {
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i < elements) x[i] *= factor;
}

// x = cap * tanh(x / cap), NaN where x is not finite: whoever reads them has to see that.
KERNEL(256) soft_cap(float* x, float cap, i64 elements) {
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i < elements) x[i] = cap * tanhf(x[i] / cap) + (x[i] - x[i]);
}

// rms_norm in place over `vectors` head vectors of `width`; a warp each.
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

// Rotates the first 2 * half elements of head vectors of `head_dim`: first half against second half,
// by the angles of the row's position (rows: slot, position). cos and sin are [positions, half]. A
// thread takes `own` neighbouring pairs, 4 or 1, of `pairs` in all.
KERNEL(256) rotary(float* x, const float* cos, const float* sin, const int2* rows, i64 pairs, int width, int half, int head_dim, int own) {
  i64 i = ((i64)blockIdx.x * 256 + threadIdx.x) * own;
  if (i >= pairs) return;
  int per_row = width / head_dim * half;
  i64 row = i / per_row;
  int pair = (int)(i - row * per_row), head = pair / half, d = pair - head * half;
  i64 angle = (i64)rows[row].y * half + d;
  float* v = x + row * width + head * head_dim + d;
  if (own == 4) {
    float4 a = *(float4*)v, b = *(float4*)(v + half), c = *(const float4*)(cos + angle), s = *(const float4*)(sin + angle), u, w;
    u.x = a.x * c.x - b.x * s.x; u.y = a.y * c.y - b.y * s.y; u.z = a.z * c.z - b.z * s.z; u.w = a.w * c.w - b.w * s.w;
    w.x = b.x * c.x + a.x * s.x; w.y = b.y * c.y + a.y * s.y; w.z = b.z * c.z + a.z * s.z; w.w = b.w * c.w + a.w * s.w;
    *(float4*)v = u;
    *(float4*)(v + half) = w;
  } else {
    float a = v[0], b = v[half], c = cos[angle], s = sin[angle];
    v[0] = a * c - b * s;
    v[half] = b * c + a * s;
  }
}

// out = activation(gate) * up, where a row of `packed` (in `format`) holds gates [width] and ups [width];
// `bias` (null for none) is as wide. grid: rows * parts, a part being 2048 elements of a row.
KERNEL(256) gate(const void* packed, int format, const float* bias, void* out, int out_format, int width, int parts, int activation) {
  int row = blockIdx.x / parts, d = ((blockIdx.x % parts) * 256 + threadIdx.x) * 8;
  i64 gates = (i64)row * 2 * width, to = (i64)row * width;
  if (d >= width) return;
  if (width % 8 == 0) {
    float g[8], u[8];
    load8(packed, format, gates + d, g);
    load8(packed, format, gates + width + d, u);
    if (bias)
#pragma unroll
      for (int i = 0; i < 8; i++) { g[i] += bias[d + i]; u[i] += bias[width + d + i]; }
#pragma unroll
    for (int i = 0; i < 8; i++) g[i] = activated(activation, g[i]) * u[i];
    put8(out, out_format, to + d, g);
  } else {
    for (int i = d; i < d + 8 && i < width; i++) {
      float g = element(packed, format, gates + i), u = element(packed, format, gates + width + i);
      if (bias) { g += bias[i]; u += bias[width + i]; }
      put(out, out_format, to + i, activated(activation, g) * u);
    }
  }
}

// out[i] = x[rows[i]], rows of `bytes` bytes, an even number; grid: rows.
KERNEL(256) gather(const char* x, const u32* rows, char* out, i64 bytes) {
  const char* from = x + (i64)rows[blockIdx.x] * bytes;
  char* to = out + (i64)blockIdx.x * bytes;
  if (bytes % 16 == 0)
    for (i64 i = threadIdx.x * 16; i < bytes; i += 4096) *(uint4*)(to + i) = *(const uint4*)(from + i);
  else
    for (i64 i = threadIdx.x * 2; i < bytes; i += 512) *(u16*)(to + i) = *(const u16*)(from + i);
}

// out[i] = x[i][first .. first + width], x being `across` wide; grid: rows.
KERNEL(256) columns(const float* x, int across, int first, float* out, int width) {
  for (int i = threadIdx.x; i < width; i += 256) out[(i64)blockIdx.x * width + i] = x[(i64)blockIdx.x * across + first + i];
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
    put4(out, format, i, v.x, v.y, v.z, v.w);
  } else {
    for (; i < elements; i++) put(out, format, i, x[i]);
  }
}

// out = x, which is in a 16-bit format.
KERNEL(256) to_float(const u16* x, float* out, i64 elements, int format) {
  i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i < elements) out[i] = half_to_f32(format, x[i]);
}
