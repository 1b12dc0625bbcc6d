//! Kernels beside attention and experts: in parts that are compiled side by side.

/// Files that are compiled together, and the kernels that the worker starts of them. They use
/// nothing of other parts' files.
pub struct Part {
    /// What it is for, in messages.
    pub name: &'static str,
    /// Source texts, after the one that all share.
    pub sources: &'static [&'static str],
    /// Names of kernels.
    pub kernels: &'static [&'static str],
}

/// Every part. Each takes a compiler no longer than attention of one kind does: `storage` has a part
/// of its own because it takes as long as all others.
pub const PARTS: [Part; 3] = [
    Part {
        name: "rows and products",
        sources: &[
            include_str!("kernels/mlp.cu"),
            include_str!("kernels/rowwise.cu"),
            include_str!("kernels/product.cu"),
            include_str!("kernels/readout.cu"),
            include_str!("kernels/routing.cu"),
        ],
        kernels: &[
            "embed",
            "rms_norm",
            "rms_norm_heads",
            "rotary",
            "rms_norm_add",
            "scale",
            "soft_cap",
            "gate",
            "gather",
            "columns",
            "add_bias",
            "to_half",
            "to_float",
            "product_large",
            "product_medium",
            "product_small",
            "product_few",
            "compare",
            "suppress",
            "argmax",
            "nll",
            "route",
            "sort_pairs",
            "expert_few_gated",
            "expert_few_plain",
            "mix",
        ],
    },
    Part {
        name: "storage and codes",
        sources: &[
            include_str!("kernels/storage.cu"),
            include_str!("kernels/codes.cu"),
        ],
        kernels: &[
            "decode_weight",
            "store",
            "store_wide",
            "split_heads",
            "split_heads_256",
            "split_heads_512",
            "round_queries",
            "round_queries_wide",
            "sum_up_pages",
            "slot_totals",
            "slot_absmax",
        ],
    },
    Part {
        name: "recurrent layers",
        sources: &[include_str!("kernels/recurrent.cu")],
        kernels: &[
            "find_runs",
            "convolve",
            "keep_inputs",
            "prepare_heads",
            "delta_rule_32",
            "delta_rule_128",
            "delta_rule_256",
            "norm_and_gate",
            "gate_output",
        ],
    },
];
