//! Reading stored bytes back, for tests.

use super::{CudaCache, PAGE};
use crate::backend::BackendError;
use crate::backend::storage::Storage;
use crate::recipe::NativeDtype;

impl CudaCache {
    /// Decodes one token's keys and values from its page's bytes.
    pub fn read_token(
        &self,
        layer: usize,
        slot: usize,
        token: usize,
    ) -> Result<[Vec<f32>; 2], BackendError> {
        use crate::recipe::float8;
        use crate::recipe::int4::Parameters;
        let kind = self.kept.kind_of(layer);
        let page = self.kept.run(kind, slot).get(token / PAGE);
        let page = page.expect("a page that is kept");
        let bytes = self.pools[kind].read(page)?;
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let width = self.layers[layer].head_dim;
        let side = |which: usize| {
            let side = self.sides[layer][which];
            let element = |head: usize, d: usize| {
                let vector = head * PAGE + token % PAGE;
                let at = side.elements as usize;
                match self.storages[layer][which] {
                    Storage::Native(native) => {
                        let at = at + 2 * (vector * width + d);
                        let bits = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
                        match native {
                            NativeDtype::F16 => half::f16::from_bits(bits).to_f32(),
                            NativeDtype::Bf16 => half::bf16::from_bits(bits).to_f32(),
                        }
                    }
                    Storage::Fixed(format, _, scale) => {
                        float8::dequantise(format, bytes[at + vector * width + d], scale)
                    }
                    Storage::Dynamic(format, _) => {
                        let scale = f32::from_le_bytes(word(side.scales as usize + 4 * vector));
                        float8::dequantise(format, bytes[at + vector * width + d], scale)
                    }
                    Storage::Grouped(size, native) => {
                        let stored = size.stored_bytes(width as u64) as usize;
                        let at = at + vector * stored;
                        let [a, b, c, e] = word(at + width / 2 + d / size.elements() * 4);
                        let parameters = Parameters {
                            scale: u16::from_le_bytes([a, b]),
                            minimum: u16::from_le_bytes([c, e]),
                        };
                        parameters.dequantise(native, bytes[at + d / 2] >> (d % 2 * 4) & 15)
                    }
                }
            };
            (0..self.layers[layer].kv_heads)
                .flat_map(|head| (0..width).map(move |d| (head, d)))
                .map(|(head, d)| element(head, d))
                .collect()
        };
        Ok([side(0), side(1)])
    }
}
