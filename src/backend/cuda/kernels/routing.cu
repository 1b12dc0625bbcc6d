// Which experts rows go to, and mixtures of experts without tensor cores.

// Chooses the `chosen` experts of the largest logits of every row ([rows, experts]), of equal ones that
// of the lower number, with their weights ([rows, chosen] both); a warp each. `scales` ([experts], or
// null) multiply weights. A row with NaN, or without a finite largest logit, gets weights of NaN.
KERNEL(256) route(const float* logits, int rows, int experts, int chosen, int renormalised, const float* scales, int* picks, float* weights) {
  int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (row >= rows) return;
  const float* own = logits + (i64)row * experts;
  picks += (i64)row * chosen;
  weights += (i64)row * chosen;
  float largest = NEG_INF;
  bool nan = false;
  for (int e = lane; e < experts; e += 32) {
    largest = fmaxf(largest, own[e]);
    nan |= own[e] != own[e];
  }
  largest = warp_max(largest);
  bool broken = __any_sync(WARP, nan) || !is_finite(largest);
  if (broken) {
    // Any experts will do, as long as they exist.
    for (int i = lane; i < chosen; i += 32) { picks[i] = i; weights[i] = __int_as_float(0x7fc00000); }
    return;
  }
  float all = 0.f, some = 0.f;
  for (int e = lane; e < experts; e += 32) all += expf(own[e] - largest);
  all = warp_sum(all);
  // Everything up to this was taken: a larger logit, or the same of a lower number.
  float last = largest;
  int last_expert = -1;
  for (int i = 0; i < chosen; i++) {
    float best = NEG_INF;
    int best_expert = experts;
    for (int e = lane; e < experts; e += 32) {
      float x = own[e];
      bool left = x < last || (x == last && e > last_expert);
      if (left && (best_expert == experts || x > best)) { best = x; best_expert = e; }
    }
    for (int m = 16; m; m >>= 1) {
      float x = __shfl_xor_sync(WARP, best, m);
      int e = __shfl_xor_sync(WARP, best_expert, m);
      if (x > best || (x == best && e < best_expert)) { best = x; best_expert = e; }
    }
    last = best;
    last_expert = best_expert;
    some += expf(best - largest);
    if (lane == 0) { picks[i] = best_expert; weights[i] = best; }
  }
  __syncwarp();
  float total = renormalised ? some : all;
  for (int i = lane; i < chosen; i += 32) {
    float weight = expf(weights[i] - largest) / total;
    weights[i] = scales ? weight * scales[picks[i]] : weight;
  }
}

// Sorts the pairs of a row and one of its experts (picks: [pairs], a row's side by side) by expert, and
// cuts every expert's into tiles of `tile`: expert, first of `order`, pairs. Up to 1,024 experts, a thread
// for each. In which order pairs of one expert stand is left open: no result depends on it.
KERNEL(1024) sort_pairs(const int* picks, int pairs, int experts, int tile, int* order, int4* tiles, int* tile_count) {
  __shared__ int counts[1024];
  __shared__ int2 sums[32];
  int e = threadIdx.x, lane = e & 31, warp = e >> 5;
  counts[e] = 0;
  __syncthreads();
  // Many loads are under way at a time: one block alone would wait for each.
  const int OWN = 8;
  for (int first = e; first < pairs; first += OWN * 1024) {
    int experts_of[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) experts_of[i] = first + i * 1024 < pairs ? picks[first + i * 1024] : -1;
#pragma unroll
    for (int i = 0; i < OWN; i++)
      if (experts_of[i] >= 0) atomicAdd(&counts[experts_of[i]], 1);
  }
  __syncthreads();
  int count = e < experts ? counts[e] : 0, own = (count + tile - 1) / tile;
  int before = count, tiles_before = own;
  for (int m = 1; m < 32; m <<= 1) {
    int a = __shfl_up_sync(WARP, before, m), b = __shfl_up_sync(WARP, tiles_before, m);
    if (lane >= m) { before += a; tiles_before += b; }
  }
  if (lane == 31) { sums[warp].x = before; sums[warp].y = tiles_before; }
  __syncthreads();
  for (int w = 0; w < warp; w++) { before += sums[w].x; tiles_before += sums[w].y; }
  if (e == 1023) *tile_count = tiles_before;
  before -= count;
  tiles_before -= own;
  for (int i = 0; i < own; i++) {
    int4 t;
    t.x = e; t.y = before + i * tile; t.z = min(tile, count - i * tile); t.w = 0;
    tiles[tiles_before + i] = t;
  }
  // From here on, where an expert's next pair goes.
  counts[e] = before;
  __syncthreads();
  for (int first = e; first < pairs; first += OWN * 1024) {
    int experts_of[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) experts_of[i] = first + i * 1024 < pairs ? picks[first + i * 1024] : -1;
#pragma unroll
    for (int i = 0; i < OWN; i++)
      if (experts_of[i] >= 0) order[atomicAdd(&counts[experts_of[i]], 1)] = first + i * 1024;
  }
}

// A thread for each of 16 x 16 outputs; sums run over ascending k by fused multiply-adds in f32.
template <bool GATED> DEV void expert_few(const ExpertProduct& p) {
  const int STEP = 64, SIDES = GATED ? 2 : 1;
  __shared__ float xs[STEP][17], ws[SIDES][STEP][17];
  if (blockIdx.x / p.column_blocks >= *p.tile_count) return;
  int4 tile = p.tiles[blockIdx.x / p.column_blocks];
  int column0 = blockIdx.x % p.column_blocks * 16, t = threadIdx.x, r = t / 16, c = t % 16;
  int line = t / 16, k_own = t % 16 * 4;
  int x_line = -1;
  if (line < tile.z) x_line = p.by_pair ? tile.y + line : p.order[tile.y + line] / p.chosen;
  i64 expert = (i64)tile.x * SIDES * p.columns * p.inner;
  const char* weight = (const char*)p.weight + expert * (p.format == FORMAT_F32 ? 4 : 2);
  float sum[SIDES];
  for (int s = 0; s < SIDES; s++) sum[s] = 0.f;
  for (int k0 = 0; k0 < p.inner; k0 += STEP) {
    float4 x = terms(p.x, p.format, x_line < 0 ? 0 : x_line, x_line < 0 ? 0 : x_line + 1, k0 + k_own, p.inner), w[SIDES];
    int lines = column0 + line < p.columns ? SIDES * p.columns : 0;
    for (int s = 0; s < SIDES; s++) w[s] = terms(weight, p.format, s * p.columns + column0 + line, lines, k0 + k_own, p.inner);
    __syncthreads();
    xs[k_own][line] = x.x; xs[k_own + 1][line] = x.y; xs[k_own + 2][line] = x.z; xs[k_own + 3][line] = x.w;
    for (int s = 0; s < SIDES; s++) {
      ws[s][k_own][line] = w[s].x; ws[s][k_own + 1][line] = w[s].y; ws[s][k_own + 2][line] = w[s].z; ws[s][k_own + 3][line] = w[s].w;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STEP; i++)
      for (int s = 0; s < SIDES; s++) sum[s] = fmaf(xs[i][r], ws[s][i][c], sum[s]);
  }
  int column = column0 + c;
  if (r >= tile.z || column >= p.columns) return;
  if (GATED) put(p.out, p.format, (i64)(tile.y + r) * p.columns + column, activated(p.activation, sum[0]) * sum[SIDES - 1]);
  else ((float*)p.out)[(i64)p.order[tile.y + r] * p.columns + column] = sum[0];
}
KERNEL(256) expert_few_gated(ExpertProduct p) { expert_few<true>(p); }
KERNEL(256) expert_few_plain(ExpertProduct p) { expert_few<false>(p); }

// out[row] (+)= sum over a row's pairs of weight * y, in their order; y: [rows * chosen, width].
// grid: rows * parts, a part being 1024 elements of a row.
KERNEL(256) mix(const float* y, const float* weights, float* out, int chosen, int width, int parts, int add) {
  int row = blockIdx.x / parts, d = ((blockIdx.x % parts) * 256 + threadIdx.x) * 4;
  if (d >= width) return;
  const float* own = y + (i64)row * chosen * width;
  float* to = out + (i64)row * width;
  weights += (i64)row * chosen;
  if (width % 4 == 0) {
    float4 sum;
    sum.x = sum.y = sum.z = sum.w = 0.f;
    for (int i = 0; i < chosen; i++) {
      float4 v = *(const float4*)(own + (i64)i * width + d);
      float w = weights[i];
      sum.x = fmaf(w, v.x, sum.x); sum.y = fmaf(w, v.y, sum.y); sum.z = fmaf(w, v.z, sum.z); sum.w = fmaf(w, v.w, sum.w);
    }
    if (add) {
      float4 v = *(const float4*)(to + d);
      sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
    }
    *(float4*)(to + d) = sum;
  } else {
    for (int e = d; e < d + 4 && e < width; e++) {
      float sum = 0.f;
      for (int i = 0; i < chosen; i++) sum = fmaf(weights[i], own[(i64)i * width + e], sum);
      to[e] = add ? to[e] + sum : sum;
    }
  }
}
