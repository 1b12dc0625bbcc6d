//! Experts that are stored together, as transformers keeps them in memory: `[experts, out, in]` in
//! one tensor, gates before ups. They are found under the names of experts that are stored one by
//! one, which is how nearly every checkpoint has them.

use std::collections::{BTreeMap, BTreeSet};

/// End of the name of all gate and up projections of a layer, `[experts, 2 * out, in]`.
const GATE_UP: &str = ".experts.gate_up_proj";
/// End of the name of all down projections, `[experts, out, in]`.
const DOWN: &str = ".experts.down_proj";

/// More experts than any layer has: a header may claim any number in an empty tensor.
const MOST_EXPERTS: usize = 1 << 16;

/// A matrix within a tensor of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Name of that tensor.
    pub whole: String,
    /// Number of the matrix, of as many equal ones as the tensor holds.
    pub number: usize,
    /// Rows and columns.
    pub shape: [usize; 2],
}

/// The matrices of a tensor of this name and shape, by the names of single experts; none where it
/// is no tensor of experts.
pub(super) fn parts(name: &str, shape: &[usize]) -> BTreeMap<String, Part> {
    let kinds: &[&str] = if name.ends_with(GATE_UP) {
        &["gate_proj", "up_proj"]
    } else if name.ends_with(DOWN) {
        &["down_proj"]
    } else {
        &[]
    };
    let (Some((folder, _)), &[experts, rows, columns]) = (name.rsplit_once('.'), shape) else {
        return BTreeMap::new();
    };
    let count = kinds.len();
    let is_empty = rows == 0 || columns == 0 || experts > MOST_EXPERTS;
    if is_empty || count == 0 || !rows.is_multiple_of(count) {
        return BTreeMap::new();
    }
    let own = |expert: usize| {
        kinds.iter().enumerate().map(move |(at, kind)| {
            let part = Part {
                whole: name.to_owned(),
                number: expert * count + at,
                shape: [rows / count, columns],
            };
            (format!("{folder}.{expert}.{kind}.weight"), part)
        })
    };
    (0..experts).flat_map(own).collect()
}

/// Takes out all matrices of a tensor of which any is stored otherwise too.
pub(super) fn leave_out(parts: &mut BTreeMap<String, Part>, is_stored: impl Fn(&str) -> bool) {
    let doubled = parts.iter().filter(|(name, _)| is_stored(name));
    let doubled: BTreeSet<String> = doubled.map(|(_, part)| part.whole.clone()).collect();
    parts.retain(|_, part| !doubled.contains(&part.whole));
}

impl Part {
    /// The matrix of the bytes of the whole tensor.
    pub fn of<'a>(&self, bytes: &'a [u8], elements: usize) -> &'a [u8] {
        let [rows, columns] = self.shape;
        let size = bytes.len() / elements.max(1) * rows * columns;
        &bytes[self.number * size..(self.number + 1) * size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_matrix_is_found_where_it_lies() {
        let found = parts("model.layers.1.mlp.experts.gate_up_proj", &[3, 4, 5]);
        assert_eq!(found.len(), 6);
        let up = &found["model.layers.1.mlp.experts.2.up_proj.weight"];
        assert_eq!((up.number, up.shape), (5, [2, 5]));
        let bytes: Vec<u8> = (0..120).collect();
        assert_eq!(up.of(&bytes, 60), &bytes[100..120]);
        let gate = &found["model.layers.1.mlp.experts.0.gate_proj.weight"];
        assert_eq!(gate.of(&bytes, 60), &bytes[..20]);
        let down = parts("mlp.experts.down_proj", &[2, 5, 2]);
        assert_eq!(down["mlp.experts.1.down_proj.weight"].shape, [5, 2]);
        assert_eq!(down["mlp.experts.1.down_proj.weight"].number, 1);
    }

    #[test]
    fn other_tensors_are_left_alone() {
        for (name, shape) in [
            ("mlp.experts.0.down_proj.weight", &[4, 4][..]),
            ("mlp.experts.gate_up_proj", &[3, 5, 4]),
            ("mlp.experts.gate_up_proj", &[12, 5]),
            ("mlp.down_proj.weight", &[3, 4, 5]),
            ("mlp.experts.gate_up_proj", &[1 << 40, 0, 0]),
            ("mlp.experts.down_proj", &[1 << 40, 4, 0]),
        ] {
            assert!(parts(name, shape).is_empty(), "{name}");
        }
    }
}
