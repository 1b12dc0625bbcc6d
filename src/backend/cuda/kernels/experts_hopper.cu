// Large tiles for compute capability 9.0, by asynchronous tensor-core instructions (wgmma): three
// warpgroups take 64 rows each, where there are as many. The same products in the same order as in the other tiles: that the two
// kinds of instructions round alike on the device at hand is checked before this one is used.

#if BF16
#define WGMMA "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
#else
#define WGMMA "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
#endif
#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(i) OUT4(i), OUT4(i + 4), OUT4(i + 8), OUT4(i + 12)
#define OUT64(i) OUT16(i), OUT16(i + 16), OUT16(i + 32), OUT16(i + 48)
#define R128 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"

// d += x w: 64 rows, 256 columns, 16 terms.
DEV void multiply_many(float (&d)[128], u64 x, u64 w) {
  asm volatile("{ " WGMMA R128 ", %128, %129, 1, 1, 1, 0, 0; }" : OUT64(0), OUT64(64) : "l"(x), "l"(w));
}
// Descriptor of lines at a shared address: 128-byte swizzle, 8 lines in 1024 bytes.
DEV u64 descriptor(u32 address) { return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)1 << 16 | (u64)((address & 0x3ffffu) >> 4); }
// Keeps the compiler from moving what touches `x` over this point.
template <int N> DEV void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]) :: "memory");
}

template <bool GATED> DEV void expert_product_many(const ExpertProduct& p) {
  const int ROWS = 192, OUTS = 256, STAGES = 4;
  extern __shared__ __align__(1024) char memory[];
  Place at = place_of(p, GATED ? OUTS / 2 : OUTS);
  if (!at.there) return;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  Copies<GATED, ROWS, OUTS, OUTS, ROWS * 2, STAGES> copies(p, at, shared_address(memory));
  float sums[128];
#pragma unroll
  for (int i = 0; i < 128; i++) sums[i] = 0.f;
  bool busy = warp / 4 * 64 < at.tile.z;
  // Products of one step are under way while the next is waited for: a stage is free only then.
#pragma unroll
  for (int s = 0; s < STAGES - 2; s++) copies.start(s);
  for (int step = 0; step < copies.steps; step++) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 3) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (busy) {
      u32 stage = copies.stage(step);
      u64 x = descriptor(stage + warp / 4 * 64 * LINE), w = descriptor(stage + ROWS * LINE);
      pin(sums);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < STEP / 16; k++) multiply_many(sums, x + k * 2, w + k * 2);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    copies.start(step + STAGES - 2);
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  pin(sums);
  finish_sums<GATED, 32>(p, at, warp * 16 + (lane >> 2), at.column0, sums);
}
extern "C" __global__ void __launch_bounds__(384, 1) expert_many_gated(ExpertProduct p) { expert_product_many<true>(p); }
extern "C" __global__ void __launch_bounds__(384, 1) expert_many_plain(ExpertProduct p) { expert_product_many<false>(p); }
