// The same as in storage.cu and heads.cu for head vectors of up to 512 elements: they take more registers,
// and a compiler as long as all others.

KERNEL(256) round_queries_wide(float* x, i64 vectors, int head_dim, int format) { round_vectors<4>(x, vectors, head_dim, format); }
KERNEL(256) store_wide(Store s) { store_heads<4>(s); }
KERNEL(256) split_heads_512(Heads h, int parts) { split_row<4, 0>(h, parts, h.format, h.q_format); }
