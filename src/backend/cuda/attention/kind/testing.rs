//! Kinds that tests compile.

use super::*;

const CLASSES: [Class; 3] = [Class::Native, Class::Float8, Class::Integer8];

/// Every pair of classes beside heads of 128, and every other width, format and precision
/// beside some pair.
pub fn units(capability: (i32, i32), shared_limit: usize) -> Vec<Unit> {
    let pair = |turn: usize| [CLASSES[turn % 3], CLASSES[turn / 3 % 3]];
    let mut kinds: Vec<AttentionKind> = (0..9)
        .map(|turn| AttentionKind {
            head_dim: 128,
            native: NativeDtype::F16,
            exact: false,
            stored: pair(turn),
            sink: false,
        })
        .collect();
    let staged = [
        ([Class::Integer4; 2], false),
        ([Class::Integer4Wide, Class::Float8], false),
        ([Class::Native, Class::Integer4Wide], true),
        ([Class::Float8, Class::Integer8], true),
    ];
    for (turn, (stored, sink)) in staged.into_iter().enumerate() {
        kinds.push(AttentionKind {
            head_dim: [128, 64, 192, 24][turn],
            native: [NativeDtype::F16, NativeDtype::Bf16][turn % 2],
            exact: turn > 1,
            stored,
            sink,
        });
    }
    for head_dim in [24, 64, 96, 128, 256, 512] {
        for native in [NativeDtype::F16, NativeDtype::Bf16] {
            for exact in [false, true] {
                kinds.push(AttentionKind {
                    head_dim,
                    native,
                    exact,
                    stored: pair(kinds.len()),
                    sink: false,
                });
            }
        }
    }
    let of = |kind: AttentionKind| {
        let tiles = Tiles::new(kind, shared_limit)?;
        Some(unit(kind, tiles, has_prompt(kind, capability)))
    };
    kinds.into_iter().filter_map(of).collect()
}
