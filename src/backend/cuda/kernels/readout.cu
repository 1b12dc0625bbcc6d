// Reading logits: the greedy choice, and the negative log-likelihood of a target. A block per row.

#define NONE 0xffffffffu

struct Choice { u32 index; u32 nan; };
struct Likelihood { double nll; float largest; u32 nan; };

struct Largest { float value; u32 index; u32 nan; };

DEV Largest better(Largest a, Largest b) {
  if (b.value > a.value || (b.value == a.value && b.index < a.index)) { a.value = b.value; a.index = b.index; }
  if (b.nan < a.nan) a.nan = b.nan;
  return a;
}

// The largest logit with its lowest index, and the lowest index of NaN; the same in every thread.
DEV Largest largest_logit(const float* row, int width) {
  __shared__ Largest found[8];
  Largest mine;
  mine.value = NEG_INF; mine.index = NONE; mine.nan = NONE;
  for (int i = threadIdx.x; i < width; i += 256) {
    Largest here;
    here.value = row[i]; here.index = i; here.nan = NONE;
    if (here.value != here.value) { here.value = NEG_INF; here.index = NONE; here.nan = i; }
    mine = better(mine, here);
  }
  for (int m = 16; m; m >>= 1) {
    Largest other;
    other.value = __shfl_xor_sync(WARP, mine.value, m);
    other.index = __shfl_xor_sync(WARP, mine.index, m);
    other.nan = __shfl_xor_sync(WARP, mine.nan, m);
    mine = better(mine, other);
  }
  if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5] = mine;
  __syncthreads();
  for (int i = 0; i < 8; i++) mine = better(mine, found[i]);
  return mine;
}

// logits[row][ids[i]] = -inf.
KERNEL(256) suppress(float* logits, int width, const u32* ids, int count) {
  float* row = logits + (i64)blockIdx.x * width;
  for (int i = threadIdx.x; i < count; i += 256) row[ids[i]] = NEG_INF;
}

KERNEL(256) argmax(const float* logits, int width, Choice* out) {
  Largest l = largest_logit(logits + (i64)blockIdx.x * width, width);
  if (threadIdx.x == 0) {
    Choice c;
    c.index = l.index; c.nan = l.nan;
    out[blockIdx.x] = c;
  }
}

// log(sum(exp(logits))) - logits[target] in f64.
KERNEL(256) nll(const float* logits, int width, const u32* targets, Likelihood* out) {
  __shared__ double sums[256];
  const float* row = logits + (i64)blockIdx.x * width;
  Largest l = largest_logit(row, width);
  double largest = (double)l.value, sum = 0.0;
  for (int i = threadIdx.x; i < width; i += 256) sum += exp((double)row[i] - largest);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half; half >>= 1) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    Likelihood r;
    r.nll = largest + log(sums[0]) - (double)row[targets[blockIdx.x]];
    r.largest = l.value; r.nan = l.nan;
    out[blockIdx.x] = r;
  }
}
