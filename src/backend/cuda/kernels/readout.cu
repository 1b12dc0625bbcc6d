// Reading logits: the greedy choice, and the negative log-likelihood of a target. A block per row.

#define NONE 0xffffffffu

// The lowest index of a logit that is not what it should be (-inf where suppressed, finite elsewhere),
// with that logit; where there is none, the largest logit.
struct Found { u32 wrong; float value; };
struct Choice { u32 index; Found found; };
struct Likelihood { double nll; Found found; };

struct Largest { float value; u32 index; u32 wrong; };

DEV Largest better(Largest a, Largest b) {
  if (b.value > a.value || (b.value == a.value && b.index < a.index)) { a.value = b.value; a.index = b.index; }
  if (b.wrong < a.wrong) a.wrong = b.wrong;
  return a;
}

// Whether `id` stands among `count` ascending ids.
DEV bool is_among(const u32* ids, int count, u32 id) {
  int low = 0, high = count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (ids[middle] < id) low = middle + 1;
    else high = middle;
  }
  return low < count && ids[low] == id;
}

// The largest logit with its lowest index, and the lowest index of a wrong one; the same in every thread.
DEV Largest largest_logit(const float* row, int width, const u32* suppressed, int count) {
  __shared__ Largest found[8];
  Largest mine;
  mine.value = NEG_INF; mine.index = NONE; mine.wrong = NONE;
  for (int i = threadIdx.x; i < width; i += 256) {
    Largest here;
    here.value = row[i]; here.index = i; here.wrong = NONE;
    if (!is_finite(here.value)) {
      if (here.value != NEG_INF || !is_among(suppressed, count, i)) here.wrong = i;
      here.value = NEG_INF; here.index = NONE;
    }
    mine = better(mine, here);
  }
  for (int i = threadIdx.x; i < count; i += 256)
    if (row[suppressed[i]] != NEG_INF && suppressed[i] < mine.wrong) mine.wrong = suppressed[i];
  for (int m = 16; m; m >>= 1) {
    Largest other;
    other.value = __shfl_xor_sync(WARP, mine.value, m);
    other.index = __shfl_xor_sync(WARP, mine.index, m);
    other.wrong = __shfl_xor_sync(WARP, mine.wrong, m);
    mine = better(mine, other);
  }
  if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5] = mine;
  __syncthreads();
  for (int i = 0; i < 8; i++) mine = better(mine, found[i]);
  return mine;
}
DEV Found what_was_found(Largest l, const float* row) {
  Found f;
  f.wrong = l.wrong; f.value = l.wrong == NONE ? l.value : row[l.wrong];
  return f;
}

// logits[row][ids[i]] = -inf.
KERNEL(256) suppress(float* logits, int width, const u32* ids, int count) {
  float* row = logits + (i64)blockIdx.x * width;
  for (int i = threadIdx.x; i < count; i += 256) row[ids[i]] = NEG_INF;
}

// `suppressed` holds `count` ascending ids.
KERNEL(256) argmax(const float* logits, int width, const u32* suppressed, int count, Choice* out) {
  const float* row = logits + (i64)blockIdx.x * width;
  Largest l = largest_logit(row, width, suppressed, count);
  if (threadIdx.x == 0) {
    Choice c;
    c.index = l.index; c.found = what_was_found(l, row);
    out[blockIdx.x] = c;
  }
}

// log(sum(exp(logits))) - logits[target] in f64.
KERNEL(256) nll(const float* logits, int width, const u32* targets, const u32* suppressed, int count, Likelihood* out) {
  __shared__ double sums[256];
  const float* row = logits + (i64)blockIdx.x * width;
  Largest l = largest_logit(row, width, suppressed, count);
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
    r.found = what_was_found(l, row);
    out[blockIdx.x] = r;
  }
}
