// What kernels with tensor cores share: copies to shared memory under way, fragments, and products of
// 16-bit operands, BF16 or F16, with sums in f32.

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies PIECE bytes, 16, 8 or 4, to shared memory.
template <int PIECE> DEV void copy_piece(u32 to, u64 from) {
  if (PIECE == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(from), "n"(PIECE) : "memory");
}
// The same for the first `bytes` of them; the rest becomes zero.
template <int PIECE> DEV void copy_piece(u32 to, u64 from, int bytes) {
  if (PIECE == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(to), "l"(from), "n"(PIECE), "r"(bytes) : "memory");
}
DEV void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEV void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four matrices of 8 x 8 halves, of which a lane addresses a row.
DEV void load_matrices(u32 r[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
DEV void load_matrices(u32 r[4], const void* from) { load_matrices(r, shared_address(from)); }
DEV void load_transposed(u32 r[4], const void* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(from)) : "memory");
}
// c += a b: 16 rows, 8 columns, 16 terms, sums in f32.
DEV void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
