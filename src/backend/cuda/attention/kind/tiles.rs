//! Which tiles blocks of attention hold in shared memory: what fits a device.

use super::{AttentionKind, Class, SCALES_BYTES, TILE, WARP_ROWS};
use crate::backend::cuda::plan::Job;

/// Bytes of the stored scales of a tile.
const STORED_SCALES_BYTES: usize = 2 * TILE * 4;
/// Bytes of the addresses of a span's pages.
const ADDRESSES_BYTES: usize = 1024 / 16 * 8;
/// Bytes of a job.
const JOB_BYTES: usize = size_of::<Job>();
/// Shared memory of a block of compute capability 8.6 and 8.9, and of 8.0.
const LIMITS: [usize; 2] = [99 << 10, 163 << 10];

/// Tiles that a block holds as they are stored, numbered as in the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// One of keys or of values.
    InTurns = 0,
    /// One of keys and one of values.
    OneEach = 1,
    /// Two of each.
    TwoEach = 2,
}

/// Blocks of several times 16 query rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Many {
    /// Query rows over 16.
    down: usize,
    held: Held,
}

/// What blocks of a kind hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Blocks of 16 query rows.
    pub few: Held,
    /// Larger ones; `None` where they do not fit.
    pub many: Option<Many>,
}

impl Tiles {
    /// The fastest that fits blocks of `limit` bytes; `None` where nothing does.
    pub fn new(kind: AttentionKind, limit: usize) -> Option<Self> {
        let few = [Held::TwoEach, Held::OneEach, Held::InTurns];
        let few = few
            .into_iter()
            .find(|held| held.exists(kind) && held.few_shared(kind) <= limit)?;
        let most = if kind.head_dim > 128 { 4 } else { 8 };
        let whole = [8, 4, 2].map(|down| (down, Held::TwoEach));
        let parts = [4, 2].map(|down| [(down, Held::OneEach), (down, Held::InTurns)]);
        let many = whole
            .into_iter()
            .chain(parts.into_iter().flatten())
            .map(|(down, held)| Many { down, held })
            .filter(|many| many.down <= most && many.held.exists(kind))
            .find(|many| many.shared(kind) <= limit);
        Some(Tiles { few, many })
    }

    /// What is embedded for all devices, the fastest first: one variant where it fits the smallest
    /// blocks without loss.
    pub fn embedded(kind: AttentionKind) -> Vec<Self> {
        let [small, large] = LIMITS.map(|limit| Tiles::new(kind, limit));
        let is_whole = |tiles: &Tiles| {
            let many = tiles.many.map(|many| many.held);
            (tiles.few, many) == (Held::TwoEach, Some(Held::TwoEach))
        };
        let small_alone = small.is_some_and(|tiles| is_whole(&tiles)) || small == large;
        let large = large.filter(|_| !small_alone);
        large.into_iter().chain(small).collect()
    }

    /// Whether blocks of `limit` bytes hold them.
    pub fn fit(self, kind: AttentionKind, limit: usize) -> bool {
        let many = self.many.map_or(0, |many| many.shared(kind));
        self.few.few_shared(kind).max(many) <= limit
    }

    /// Bytes of the smallest blocks.
    pub fn least_bytes(kind: AttentionKind) -> usize {
        let held = [Held::InTurns, Held::OneEach];
        let exists = held.into_iter().filter(|held| held.exists(kind));
        exists.map(|held| held.few_shared(kind)).min().unwrap_or(0)
    }

    /// Definitions for the kernels, which check the bytes of shared memory against their own layout.
    pub fn defines(self, kind: AttentionKind) -> [String; 5] {
        let (down, held) = self.many.map_or((0, Held::TwoEach), |m| (m.down, m.held));
        let many_shared = self.many.map_or(0, |many| many.shared(kind));
        [
            format!("HELD_FEW={}", self.few as i32),
            format!("FEW_SHARED={}", self.few.few_shared(kind)),
            format!("DOWN_MANY={down}"),
            format!("HELD_MANY={}", held as i32),
            format!("MANY_SHARED={many_shared}"),
        ]
    }
}

impl Held {
    /// Zeros behind vectors that are no multiple of 16 stay where one side lies only.
    fn exists(self, kind: AttentionKind) -> bool {
        self != Held::InTurns || kind.head_dim.is_multiple_of(16)
    }

    /// Bytes of tiles as stored, of `sides` bytes each.
    fn stored(self, [keys, values]: [usize; 2]) -> usize {
        match self {
            Held::InTurns => keys.max(values),
            Held::OneEach => keys + values,
            Held::TwoEach => 2 * (keys + values),
        }
    }

    /// Bytes of tiles of operands beside those as stored, where `beside` tells which sides have
    /// one.
    fn operands(self, kind: AttentionKind, beside: impl Fn(Class) -> bool) -> usize {
        let sides = kind.stored.into_iter().filter(|&class| beside(class));
        let tiles = match self {
            Held::TwoEach => sides.count(),
            Held::OneEach | Held::InTurns => sides.count().min(1),
        };
        tiles * TILE * operand_row(kind)
    }

    /// Tiles, queries and weights (where queries stay in registers, weights take their place),
    /// largest scores, scales of two tiles, addresses of two spans, four jobs.
    pub fn few_shared(self, kind: AttentionKind) -> usize {
        let tiles = self.stored(kind.stored.map(|class| TILE * row(kind, class)));
        let (queries, weights) = (operand_row(kind), (TILE + 8) * 2);
        let both = match kind.head_dim <= 128 {
            true => queries.max(weights),
            false => queries + weights,
        };
        tiles
            + self.operands(kind, |class| kind.stages(class))
            + parts(kind) * WARP_ROWS * both
            + 4 * WARP_ROWS * 4
            + 2 * STORED_SCALES_BYTES
            + 2 * ADDRESSES_BYTES
            + 4 * JOB_BYTES
    }
}

impl Many {
    /// Query rows of a block.
    pub fn rows(self) -> usize {
        self.down * WARP_ROWS
    }

    /// Threads of a block: a warp for 16 rows, or two that share the elements of long vectors.
    pub fn threads(self, kind: AttentionKind) -> u32 {
        let shares = if kind.head_dim > 256 { 2 } else { 1 };
        32 * shares * self.down as u32
    }

    /// Queries, tiles, scales, addresses.
    pub fn shared(self, kind: AttentionKind) -> usize {
        parts(kind) * self.rows() * operand_row(kind)
            + self
                .held
                .stored(kind.stored.map(|class| TILE * row(kind, class)))
            + self.held.operands(kind, |class| class != Class::Native)
            + SCALES_BYTES
            + ADDRESSES_BYTES
    }
}

/// Bytes of a row of a tile of operands: padded, so that rows fall on different banks.
fn operand_row(kind: AttentionKind) -> usize {
    (kind.head_dim.next_multiple_of(16) + 8) * 2
}

/// Bytes of a row of a tile as it is copied.
fn row(kind: AttentionKind, class: Class) -> usize {
    match class {
        Class::Native => operand_row(kind),
        _ if kind.stages(class) => raw_row(kind, class),
        _ => byte_row(kind),
    }
}

/// Bytes of a row of one-byte elements, padded likewise.
fn byte_row(kind: AttentionKind) -> usize {
    let width = kind.head_dim.next_multiple_of(16);
    if (width / 16).is_multiple_of(2) {
        width + 16
    } else {
        width
    }
}

/// Bytes of a row of elements that are staged.
fn raw_row(kind: AttentionKind, class: Class) -> usize {
    let width = kind.head_dim;
    let bytes = match class {
        Class::Native => 2 * width,
        Class::Float8 | Class::Integer8 => width,
        Class::Integer4 => width / 2 + width / 32 * 4,
        Class::Integer4Wide => width / 2 + width / 64 * 4,
    };
    bytes.next_multiple_of(16)
}

fn parts(kind: AttentionKind) -> usize {
    1 + usize::from(kind.exact)
}

#[cfg(test)]
mod tests {
    use super::super::prompt_shared;
    use super::*;
    use crate::recipe::NativeDtype;

    const HOPPER: usize = 227 << 10;
    const AMPERE: usize = 163 << 10;
    const ADA: usize = 99 << 10;

    fn kind(head_dim: usize, exact: bool, stored: [Class; 2]) -> AttentionKind {
        AttentionKind {
            head_dim,
            native: NativeDtype::F16,
            exact,
            stored,
            sink: false,
        }
    }

    #[test]
    fn blocks_shrink_to_what_fits() {
        let native = [Class::Native; 2];
        let of = |head_dim, exact, limit| {
            let tiles = Tiles::new(kind(head_dim, exact, native), limit).unwrap();
            (tiles.few, tiles.many.map(|many| (many.down, many.held)))
        };
        let whole = |down| (Held::TwoEach, Some((down, Held::TwoEach)));
        assert_eq!(of(128, false, HOPPER), whole(8));
        assert_eq!(of(128, true, HOPPER), whole(8));
        assert_eq!(of(256, false, HOPPER), whole(4));
        assert_eq!(of(256, false, AMPERE), whole(2));
        assert_eq!(of(128, false, ADA), whole(4));
        assert_eq!(of(8, true, ADA), whole(8));
        let (one, turns) = (Held::OneEach, Held::InTurns);
        assert_eq!(of(256, false, ADA), (one, Some((4, turns))));
        assert_eq!(of(512, false, HOPPER), (one, Some((4, one))));
        assert_eq!(of(512, false, AMPERE), (one, Some((4, turns))));
        assert_eq!(of(512, false, ADA), (turns, Some((2, turns))));
        assert!(prompt_shared(128) <= HOPPER);
    }

    #[test]
    fn blocks_of_few_rows_do_where_larger_ones_do_not_fit() {
        let float8 = kind(512, false, [Class::Float8; 2]);
        let small = Tiles::new(float8, ADA).unwrap();
        assert_eq!((small.few, small.many), (Held::OneEach, None));
        // Neither keys nor values of groups fit beside their operands.
        let groups = kind(512, false, [Class::Integer4; 2]);
        assert_eq!(Tiles::new(groups, ADA), None);
        assert!(Tiles::least_bytes(groups) > ADA);
        assert!(Tiles::new(groups, AMPERE).is_some());
    }

    /// What `docs/recipes.md` says of heads of 512 elements in the smallest blocks.
    #[test]
    fn wide_heads_fit_small_blocks_without_groups_and_sinks() {
        let classes = [
            Class::Native,
            Class::Float8,
            Class::Integer8,
            Class::Integer4,
            Class::Integer4Wide,
        ];
        for stored in classes.iter().flat_map(|&k| classes.map(|v| [k, v])) {
            let plain = kind(512, false, stored);
            let is_grouped = stored.iter().any(|class| class.is_grouped());
            assert_eq!(Tiles::new(plain, ADA).is_some(), !is_grouped, "{stored:?}");
            let sink = AttentionKind {
                sink: true,
                ..plain
            };
            let is_native = stored == [Class::Native; 2];
            assert_eq!(Tiles::new(sink, ADA).is_some(), is_native, "{stored:?}");
        }
    }

    #[test]
    fn what_is_embedded_serves_every_block() {
        for head_dim in [32, 64, 96, 128, 256, 512] {
            for class in [Class::Native, Class::Float8] {
                let kind = kind(head_dim, false, [class; 2]);
                let variants = Tiles::embedded(kind);
                assert_eq!(variants.len(), if head_dim > 128 { 2 } else { 1 });
                for limit in [ADA, AMPERE, HOPPER] {
                    assert!(variants.iter().any(|tiles| tiles.fit(kind, limit)));
                }
                if head_dim > 128 {
                    assert_eq!(variants.first(), Tiles::new(kind, AMPERE).as_ref());
                }
            }
        }
    }
}
