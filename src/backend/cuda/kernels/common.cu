// What every kernel file begins with. Header-free: NVRTC needs no include path.
//
// Contraction of products and sums is off (--fmad=false): where a fused operation is wanted it is
// written as fmaf. So the same expression has the same bits in every kernel that holds it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEV static __device__ __forceinline__
#define DEV_MEMBER __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define WARP 0xffffffffu

// Number formats of stored elements.
#define FORMAT_F32 0
#define FORMAT_F16 1
#define FORMAT_BF16 2
#define FORMAT_E4M3 3
#define FORMAT_E5M2 4
#define FORMAT_INT8 5
#define FORMAT_INT4 6       // groups of 32
#define FORMAT_INT4_WIDE 7  // groups of 64

// Tokens of a cache page.
#define PAGE 16
#define NEG_INF (__int_as_float(0xff800000))

// Where a slot's page of one kind of layers lies: their stored elements and scales, and their counters.
struct Page { u64 stored; u64 counts; };

// One component of one layer: number format, whether every vector has its own scale, the fixed
// scale otherwise, and byte offsets within a page: elements [kv_heads][16][head_dim], scales
// [kv_heads][16] (dynamic scales only), counters [kv_heads][16] (quantised components only). Where
// elements have 4 bits, a head vector is head_dim / 2 bytes of codes (two elements each, the first in
// the lower half) and, per group, an FP16 scale and an FP16 minimum. `sink` is the byte offset, in a
// slot's room for its first tokens, of their elements [tokens][kv_heads][head_dim] in the native format
// (quantised components only).
#define ZEROS_SCALE (-8.6736174e-19f)  // stored as the scale of a vector of zeros, which is 1: -2^-60; see attention
struct Side { int format; int dynamic; float scale; u32 elements; u32 scales; u32 counts; u32 sink; };

DEV float f16_to_f32(u16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
DEV u16 f32_to_f16(float f) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
DEV float bf16_to_f32(u16 h) { return __uint_as_float((u32)h << 16); }
DEV u16 f32_to_bf16(float f) { u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }

DEV float half_to_f32(int format, u16 h) { return format == FORMAT_F16 ? f16_to_f32(h) : bf16_to_f32(h); }
DEV u16 f32_to_half(int format, float f) { return format == FORMAT_F16 ? f32_to_f16(f) : f32_to_bf16(f); }

// Two numbers in a 16-bit format, the first in the low half.
DEV u32 pack2(int format, float a, float b) {
  u32 h;
  if (format == FORMAT_F16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(b), "f"(a));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(b), "f"(a));
  return h;
}

// Element i of a matrix stored in `format`, exactly.
DEV float element(const void* data, int format, i64 i) {
  if (format == FORMAT_F32) return ((const float*)data)[i];
  return half_to_f32(format, ((const u16*)data)[i]);
}

// Four numbers in `format` at element i, a multiple of four.
DEV void put4(void* out, int format, i64 i, float a, float b, float c, float d) {
  if (format == FORMAT_F32) {
    float4 v;
    v.x = a; v.y = b; v.z = c; v.w = d;
    *(float4*)((float*)out + i) = v;
  } else {
    uint2 h;
    h.x = pack2(format, a, b);
    h.y = pack2(format, c, d);
    *(uint2*)((u16*)out + i) = h;
  }
}
DEV void put(void* out, int format, i64 i, float x) {
  if (format == FORMAT_F32) ((float*)out)[i] = x;
  else ((u16*)out)[i] = f32_to_half(format, x);
}

// Two numbers of a matrix stored in `format`, from element i, an even number.
DEV float2 load2(const void* data, int format, i64 i) {
  if (format == FORMAT_F32) return *(const float2*)((const float*)data + i);
  u32 h = *(const u32*)((const u16*)data + i);
  float2 v;
  v.x = half_to_f32(format, (u16)h); v.y = half_to_f32(format, (u16)(h >> 16));
  return v;
}
// Two numbers in `format` at element i, an even number.
DEV void put2(void* out, int format, i64 i, float a, float b) {
  if (format == FORMAT_F32) {
    float2 v;
    v.x = a; v.y = b;
    *(float2*)((float*)out + i) = v;
  } else {
    *(u32*)((u16*)out + i) = pack2(format, a, b);
  }
}
// Eight numbers of a matrix stored in `format`, from element i, a multiple of eight.
DEV void load8(const void* data, int format, i64 i, float v[8]) {
  if (format == FORMAT_F32) {
    float4 a = *(const float4*)((const float*)data + i), b = *(const float4*)((const float*)data + i + 4);
    v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
  } else {
    uint4 h = *(const uint4*)((const u16*)data + i);
    u32 words[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v[2 * j] = half_to_f32(format, (u16)words[j]);
      v[2 * j + 1] = half_to_f32(format, (u16)(words[j] >> 16));
    }
  }
}
// Eight numbers in `format` at element i, a multiple of eight.
DEV void put8(void* out, int format, i64 i, const float v[8]) {
  if (format == FORMAT_F32) {
    put4(out, format, i, v[0], v[1], v[2], v[3]);
    put4(out, format, i + 4, v[4], v[5], v[6], v[7]);
  } else {
    uint4 h;
    h.x = pack2(format, v[0], v[1]);
    h.y = pack2(format, v[2], v[3]);
    h.z = pack2(format, v[4], v[5]);
    h.w = pack2(format, v[6], v[7]);
    *(uint4*)((u16*)out + i) = h;
  }
}

// The conversion rule of recipe::int4.
#define INT4_LARGEST 65504.f
DEV int group_of(int format) { return format == FORMAT_INT4 ? 32 : 64; }
DEV int packed_bytes(int format, int head_dim) { return head_dim / 2 + head_dim / group_of(format) * 4; }
DEV float int4_value(u32 code, float scale, float minimum) { return fminf(fmaf((float)code, scale, minimum), INT4_LARGEST); }

// 1 / x for x >= 1, within one unit in the last place; zero where that is subnormal. Division that
// rounds correctly takes several times as many instructions.
DEV float reciprocal(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float silu(float g) { return g * reciprocal(1.f + expf(-g)); }
DEV bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

DEV float warp_sum(float v) {
  for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(WARP, v, m);
  return v;
}
DEV float warp_max(float v) {
  for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(WARP, v, m));
  return v;
}
