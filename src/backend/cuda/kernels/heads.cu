// Head vectors of up to 256 elements from the packed output of a product.

// Adds the bias, norms and rotates queries and keys, writes queries and stores keys and values; see
// split_row. grid: rows * parts.
KERNEL(256) split_heads(Heads h, int parts) {
  bool usual = h.format == h.q_format && h.store.head_dim == 128 && h.store.turned == 64;
  if (usual && h.format == FORMAT_F16) split_row<1, 128>(h, parts, FORMAT_F16, FORMAT_F16);
  else if (usual && h.format == FORMAT_BF16) split_row<1, 128>(h, parts, FORMAT_BF16, FORMAT_BF16);
  else split_row<1, 0>(h, parts, h.format, h.q_format);
}
KERNEL(256) split_heads_256(Heads h, int parts) { split_row<2, 0>(h, parts, h.format, h.q_format); }
