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

/// Templates that several parts have kernels of.
const VECTORS: &str = include_str!("kernels/vectors.cu");

/// Every part. None takes a compiler longer than attention of one kind does: what does is cut.
pub const PARTS: [Part; 6] = [
    Part {
        name: "rows",
        sources: &[
            include_str!("kernels/mlp.cu"),
            include_str!("kernels/rowwise.cu"),
            include_str!("kernels/readout.cu"),
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
            "suppress",
            "argmax",
            "nll",
        ],
    },
    Part {
        name: "products",
        sources: &[
            include_str!("kernels/mlp.cu"),
            include_str!("kernels/product.cu"),
            include_str!("kernels/routing.cu"),
        ],
        kernels: &[
            "product_large",
            "product_medium",
            "product_small",
            "product_few",
            "compare",
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
            VECTORS,
            include_str!("kernels/storage.cu"),
            include_str!("kernels/codes.cu"),
        ],
        kernels: &[
            "decode_weight",
            "store",
            "round_queries",
            "sum_up_pages",
            "slot_totals",
            "slot_absmax",
        ],
    },
    Part {
        name: "heads",
        sources: &[VECTORS, include_str!("kernels/heads.cu")],
        kernels: &["split_heads", "split_heads_256"],
    },
    Part {
        name: "wide heads",
        sources: &[VECTORS, include_str!("kernels/heads_wide.cu")],
        kernels: &["store_wide", "round_queries_wide", "split_heads_512"],
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
