// Activations of gates.
#define SILU 0
#define GELU_TANH 1
// x / 2 * (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) * (x + 0.044715 x^3).
DEV float gelu_tanh(float x) { return x * reciprocal(1.f + expf(-1.59576912f * fmaf(0.044715f * x * x, x, x))); }
DEV float activated(int activation, float g) { return activation == SILU ? silu(g) : gelu_tanh(g); }

// A product of the rows of every tile (expert, first of `order`, rows) and its expert's weight. `x` is
// [rows, inner], or [pairs, inner] in the order of `order` where `by_pair` is set; `order` holds
// row * chosen + which of the row's experts.
//
// Outputs of gates and ups are activation(gate) * up, [pairs, columns] in the order of `order` and in
// `format`, from weights [experts, 2 * columns, inner]; others are f32, [rows * chosen, columns], from
// weights [experts, columns, inner]. A tile has `column_blocks` blocks, the grid some tiles more than
// there are.
struct ExpertProduct {
  const void* x; const void* weight; void* out;
  const int4* tiles; const int* tile_count; const int* order;
  int inner, columns, chosen, format, activation, by_pair, column_blocks;
};
