// Weights from codes, as backend::Codes defines them.

struct Codes {
  const u8* codes; const float* scales; const u8* zeros; void* out;
  int* broken;                 // set where a number is not finite
  i64 row_bytes;
  int rows, columns, tile_rows, tile_columns, groups;
  int kind, zero;              // without zeros, the same code stands for 0 everywhere
  int format;
};

// Kinds, as backend::CodeKind numbers them.
#define INTERLEAVED 0
#define NIBBLE 1
#define SIGNED 3
#define E4M3_CODE 4

DEV u8 code_at(const Codes& c, int row, int column) {
  if (c.kind == INTERLEAVED) {
    // Places of eight outputs in a word: 0, 4, 1, 5, 2, 6, 3, 7.
    u32 word = *(const u32*)(c.codes + column * c.row_bytes + row / 8 * 4);
    int place = (row % 8 >> 1) + (row % 2) * 4;
    return word >> 4 * place & 15u;
  }
  const u8* codes = c.codes + row * c.row_bytes;
  if (c.kind == NIBBLE) return codes[column / 2] >> 4 * (column % 2) & 15u;
  return codes[column];
}

// Grid: blocks of 1,024 numbers.
KERNEL(256) decode_weight(Codes c) {
  i64 all = (i64)c.rows * c.columns;
  for (int i = 0; i < 4; i++) {
    i64 at = (i64)blockIdx.x * 1024 + i * 256 + threadIdx.x;
    if (at >= all) return;
    int row = at / c.columns, column = at % c.columns, group = column / c.tile_columns;
    u8 code = code_at(c, row, column);
    float x;
    if (c.kind == E4M3_CODE) x = (code & 0x7f) == 0x7f ? __int_as_float(0x7fc00000) : decode(FORMAT_E4M3, code);
    else if (c.kind == SIGNED) x = (float)(signed char)code;
    else x = (float)((int)code - (c.zeros ? c.zeros[(i64)row * c.groups + group] : c.zero));
    x *= c.scales[(i64)(row / c.tile_rows) * c.groups + group];
    put(c.out, c.format, at, x);
    // Rounding to 16 bits may exceed what they hold.
    float rounded = c.format == FORMAT_F32 ? x : half_to_f32(c.format, ((const u16*)c.out)[at]);
    if (!is_finite(rounded)) *c.broken = 1;
  }
}
