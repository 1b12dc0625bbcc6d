//! Engines that do something else than they say.

use crate::engine::ArmSetup;
use crate::schema::{ComponentTotals, Engagement, KvTotals};

use super::LAYOUT;

/// What an engine does instead of applying recipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// It does what it says.
    #[default]
    None,
    /// Everything is stored natively.
    NotApplied,
    /// The probe is stored as the recipe says, the cases natively.
    NotAppliedToCases,
    /// Keys are stored natively.
    NativeKeys,
    /// Values are stored natively.
    NativeValues,
    /// Keys are stored as values should be, and values as keys.
    Swapped,
    /// Every scale is 1.
    UnitScales,
    /// Scales are right in the probe and 1 in the cases.
    UnitScalesInCases,
    /// Every layer has the first one's scales.
    FirstScales,
    /// The last layer is not read back.
    MissingLayer,
    /// Cases do not say what they stored.
    Silent,
    /// Nothing that is stored differs from native.
    NothingChanges,
    /// Even native storage changes keys.
    NativeChanges,
    /// The second native arm has another token in the answer to the prompt that starts with 3.
    OneToken,
    /// The second native arm has another last bit in the likelihood of the window that starts
    /// with 2.
    OneBit,
    /// Where there is a draft, its second token is taken over unseen.
    BelievesDrafts,
}

impl Lie {
    pub fn about_probe(self, mut proof: Engagement) -> Engagement {
        let first = proof.layers[0].clone();
        for layer in &mut proof.layers {
            let mut kv = KvTotals {
                k: layer.k.clone(),
                v: layer.v.clone(),
            };
            match self {
                Lie::FirstScales => {
                    set_scales(&mut kv.k, first.k.scale_min);
                    set_scales(&mut kv.v, first.v.scale_min);
                }
                Lie::NotAppliedToCases | Lie::UnitScalesInCases => {}
                _ => self.about_storage(&mut kv),
            }
            (layer.k, layer.v) = (kv.k, kv.v);
        }
        if self == Lie::MissingLayer {
            proof.layers.pop();
        }
        proof.unit_scales = self == Lie::UnitScales && proof.differs_from_native;
        proof
    }

    pub fn about_case(self, mut kv: KvTotals) -> Option<KvTotals> {
        if self == Lie::Silent {
            return None;
        }
        self.about_storage(&mut kv);
        Some(kv)
    }

    pub fn about_token(self, prompt: &[u32], setup: &ArmSetup) -> u32 {
        u32::from(self == Lie::OneToken && prompt[0] == 3 && is_second(setup))
    }

    /// The token that an answer has in second place, where the arm itself has `own`.
    pub fn about_draft(self, own: u32, draft: &[u32]) -> u32 {
        match draft.get(1) {
            Some(&drafted) if self == Lie::BelievesDrafts => drafted,
            _ => own,
        }
    }

    pub fn about_bits(self, ids: &[u32], setup: &ArmSetup) -> u64 {
        u64::from(self == Lie::OneBit && ids[0] == 2 && is_second(setup))
    }

    fn about_storage(self, kv: &mut KvTotals) {
        match self {
            Lie::NotApplied | Lie::NotAppliedToCases => {
                make_native(&mut kv.k);
                make_native(&mut kv.v);
            }
            Lie::NativeKeys => make_native(&mut kv.k),
            Lie::NativeValues => make_native(&mut kv.v),
            Lie::Swapped => std::mem::swap(&mut kv.k, &mut kv.v),
            Lie::UnitScales | Lie::UnitScalesInCases => {
                set_scales(&mut kv.k, Some(1.0));
                set_scales(&mut kv.v, Some(1.0));
            }
            Lie::NothingChanges => (kv.k.changed, kv.v.changed) = (0, 0),
            Lie::NativeChanges => kv.k.changed = 1,
            Lie::None
            | Lie::FirstScales
            | Lie::MissingLayer
            | Lie::Silent
            | Lie::OneToken
            | Lie::OneBit
            | Lie::BelievesDrafts => {}
        }
    }
}

fn make_native(totals: &mut ComponentTotals) {
    *totals = ComponentTotals {
        bytes: 2 * totals.elements,
        elements: totals.elements,
        ..ComponentTotals::default()
    };
}

/// Native storage has no scale to change.
fn set_scales(totals: &mut ComponentTotals, scale: Option<f32>) {
    if totals.scale_min.is_some() {
        (totals.scale_min, totals.scale_max) = (scale, scale);
    }
}

/// The second native arm has another layout.
fn is_second(setup: &ArmSetup) -> bool {
    setup.layout != LAYOUT
}
