//! Which pages of which layers a sequence keeps: bookkeeping that workers share.
//!
//! Layers with the same window share pages of 16 tokens, layers without one likewise. Of a window, a
//! sequence keeps the pages from that of the first token which its next row sees. What lies before
//! is given back when the next pass begins: until then the rows of a pass can be taken back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::{BackendError, CacheLayout, CacheRow};
use crate::recipe::{PAGE_TOKENS, most_pages};

/// Tokens of a page.
pub const PAGE: usize = PAGE_TOKENS as usize;

/// Layers that keep the same tokens and share pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerKind {
    /// Tokens that a row sees, its own included; `None` where every token is kept.
    pub window: Option<usize>,
    /// Numbers of the layers, ascending.
    pub layers: Vec<usize>,
}

impl LayerKind {
    /// The kinds of a cache, that without a window first. A window that holds a whole slot is none.
    pub fn of(layout: &CacheLayout) -> Vec<LayerKind> {
        let mut kinds: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for (number, layer) in layout.layers.iter().enumerate() {
            let window = layer.window.filter(|&window| window < layout.slot_tokens);
            kinds.entry(window).or_default().push(number);
        }
        let kinds = kinds.into_iter();
        kinds
            .map(|(window, layers)| LayerKind { window, layers })
            .collect()
    }

    /// Most pages that `sequences` slots of a cache need at a time.
    pub fn most_pages(&self, layout: &CacheLayout, sequences: usize) -> usize {
        let window = self.window.map(|window| window as u64);
        let [sequences, tokens, pass] =
            [sequences, layout.slot_tokens, layout.pass_tokens].map(|count| count as u64);
        most_pages(window, sequences, tokens, pass) as usize
    }

    /// The page of the first token that a row at `position` sees.
    fn first_page(&self, position: usize) -> usize {
        let see = |window| (position + 1).saturating_sub(window);
        self.window.map_or(0, see) / PAGE
    }
}

/// Pages of one kind that a slot keeps: all from one on.
#[derive(Clone, Debug)]
pub struct PageRun<P> {
    first: usize,
    pages: VecDeque<P>,
}

impl<P: Copy> PageRun<P> {
    /// The first position that is kept.
    pub fn first_position(&self) -> usize {
        self.first * PAGE
    }

    /// Page number `number` of the sequence; `None` where it was given back or never was.
    pub fn get(&self, number: usize) -> Option<P> {
        let at = number.checked_sub(self.first)?;
        self.pages.get(at).copied()
    }

    /// Pages with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, P)> {
        (self.first..).zip(self.pages.iter().copied())
    }

    /// Number of the page behind the last one.
    fn end(&self) -> usize {
        self.first + self.pages.len()
    }
}

/// A page that a slot no longer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenBack<P> {
    /// Number of the kind.
    pub kind: usize,
    /// Slot.
    pub slot: usize,
    /// Number of the page in its sequence.
    pub number: usize,
    /// The page.
    pub page: P,
}

#[derive(Clone)]
struct Slot<P> {
    /// By kind.
    runs: Vec<PageRun<P>>,
    /// By layer: the largest stored position plus one.
    tokens: Vec<usize>,
}

/// Pages of all slots, whatever a worker calls a page.
pub struct Pages<P> {
    kinds: Vec<LayerKind>,
    /// Kind of every layer.
    kind_of: Vec<usize>,
    slots: Vec<Slot<P>>,
    slot_tokens: usize,
}

impl<P: Copy> Pages<P> {
    /// Empty slots.
    pub fn new(layout: &CacheLayout) -> Self {
        let kinds = LayerKind::of(layout);
        let mut kind_of = vec![0; layout.layers.len()];
        for (number, kind) in kinds.iter().enumerate() {
            kind.layers
                .iter()
                .for_each(|&layer| kind_of[layer] = number);
        }
        let run = PageRun {
            first: 0,
            pages: VecDeque::new(),
        };
        let slot = Slot {
            runs: vec![run; kinds.len()],
            tokens: vec![0; kind_of.len()],
        };
        Pages {
            kinds,
            kind_of,
            slots: vec![slot; layout.slots],
            slot_tokens: layout.slot_tokens,
        }
    }

    /// Every kind.
    pub fn kinds(&self) -> &[LayerKind] {
        &self.kinds
    }

    /// Number of the kind of a layer.
    pub fn kind_of(&self, layer: usize) -> usize {
        self.kind_of[layer]
    }

    /// What a slot keeps of a kind.
    pub fn run(&self, kind: usize, slot: usize) -> &PageRun<P> {
        &self.slots[slot].runs[kind]
    }

    /// Tokens of a slot in one layer: its largest stored position plus one.
    pub fn tokens(&self, layer: usize, slot: usize) -> usize {
        self.slots[slot].tokens[layer]
    }

    /// The first position that a slot keeps in a layer.
    pub fn first_position(&self, layer: usize, slot: usize) -> usize {
        self.run(self.kind_of[layer], slot).first_position()
    }

    /// Begins a pass over `rows` in `layers`: takes out what lies behind the windows of every slot,
    /// of one without a row behind that of its next token. The same rows again take out nothing.
    ///
    /// # Panics
    /// Where a row lies beyond its slot, or sees what was given back.
    pub fn begin(&mut self, layers: &Range<usize>, rows: &[CacheRow]) -> Vec<GivenBack<P>> {
        for row in rows {
            let (position, most) = (row.position, self.slot_tokens);
            assert!(
                position < most,
                "position {position} of a slot of {most} tokens"
            );
        }
        let mut given = Vec::new();
        for (number, kind) in self.kinds.iter().enumerate() {
            if kind.window.is_none() || !kind.is_among(layers) {
                continue;
            }
            let mut firsts: Vec<Option<usize>> = vec![None; self.slots.len()];
            for row in rows {
                let first = firsts[row.slot].get_or_insert(row.position);
                *first = (*first).min(row.position);
            }
            for (slot, first) in firsts.into_iter().enumerate() {
                let state = &mut self.slots[slot];
                let run = &mut state.runs[number];
                let stored = kind.layers.iter().map(|&layer| state.tokens[layer]);
                let next = first.unwrap_or_else(|| stored.min().unwrap_or(0));
                let needed = kind.first_page(next);
                assert!(
                    first.is_none() || run.first <= needed,
                    "position {next} of slot {slot} sees what was given back"
                );
                while run.first < needed {
                    let Some(page) = run.pages.pop_front() else {
                        break;
                    };
                    given.push(GivenBack {
                        kind: number,
                        slot,
                        number: run.first,
                        page,
                    });
                    run.first += 1;
                }
            }
        }
        given
    }

    /// Makes sure that every row has a page, from `take` where it has none, which gets the kind, the
    /// slot and the page's number.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn grow<E>(
        &mut self,
        layers: &Range<usize>,
        rows: &[CacheRow],
        mut take: impl FnMut(usize, usize, usize) -> Result<P, E>,
    ) -> Result<(), E> {
        for (number, kind) in self.kinds.iter().enumerate() {
            if !kind.is_among(layers) {
                continue;
            }
            for &CacheRow { slot, position } in rows {
                let run = &mut self.slots[slot].runs[number];
                while run.end() <= position / PAGE {
                    let page = take(number, slot, run.end())?;
                    run.pages.push_back(page);
                }
            }
        }
        Ok(())
    }

    /// The rows count as stored in `layers`.
    ///
    /// # Panics
    /// Where a row leaves a gap.
    pub fn stored(&mut self, layers: &Range<usize>, rows: &[CacheRow]) {
        for &CacheRow { slot, position } in rows {
            for tokens in &mut self.slots[slot].tokens[layers.clone()] {
                assert!(
                    position <= *tokens,
                    "a gap before position {position} of slot {slot}"
                );
                *tokens = (*tokens).max(position + 1);
            }
        }
    }

    /// Forgets a slot's tokens from `tokens` on, and takes out the pages that become empty.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`], with nothing changed, where the next row would see what was given
    /// back.
    pub fn cut(&mut self, slot: usize, tokens: usize) -> Result<Vec<GivenBack<P>>, BackendError> {
        let state = &mut self.slots[slot];
        let is_cut = tokens > 0 && state.tokens.iter().any(|&stored| stored > tokens);
        for (kind, run) in self.kinds.iter().zip(&state.runs) {
            if is_cut && kind.first_page(tokens) < run.first {
                return Err(cannot_return(slot, tokens, kind, run.first_position()));
            }
        }
        let kept = tokens.div_ceil(PAGE);
        let mut given = Vec::new();
        for (kind, run) in state.runs.iter_mut().enumerate() {
            while run.end() > kept {
                let Some(page) = run.pages.pop_back() else {
                    break;
                };
                given.push(GivenBack {
                    kind,
                    slot,
                    number: run.end(),
                    page,
                });
            }
            if tokens == 0 {
                run.first = 0;
            }
        }
        for stored in &mut state.tokens {
            *stored = (*stored).min(tokens);
        }
        Ok(given)
    }

    /// Checks that what a row at `position` sees of a layer is stored and kept.
    ///
    /// # Panics
    /// Where it is not.
    pub fn check_visible(&self, layer: usize, row: CacheRow) {
        let CacheRow { slot, position } = row;
        assert!(
            position < self.tokens(layer, slot),
            "position {position} of slot {slot} is not stored"
        );
        let kind = self.kind_of[layer];
        assert!(
            self.run(kind, slot).first <= self.kinds[kind].first_page(position),
            "position {position} of slot {slot} sees what was given back"
        );
    }
}

impl LayerKind {
    fn is_among(&self, layers: &Range<usize>) -> bool {
        self.layers.iter().any(|layer| layers.contains(layer))
    }
}

/// Error of a cut to where tokens are needed that were given back.
fn cannot_return(slot: usize, tokens: usize, kind: &LayerKind, kept: usize) -> BackendError {
    let window = kind.window.unwrap_or_default();
    BackendError::Unsupported(format!(
        "slot {slot} cannot be cut back to {tokens} tokens: layers with a window of {window} keep \
         what lies from position {kept} on, expected all from {}",
        (tokens + 1).saturating_sub(window)
    ))
}

#[cfg(test)]
mod tests;
