use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::backend::CacheLayer;
use crate::backend::conformance::span;
use crate::recipe::{NativeDtype, Recipe};

fn layout(windows: &[Option<usize>], slots: usize, slot_tokens: usize) -> CacheLayout {
    let layer = |window: &Option<usize>| CacheLayer {
        window: *window,
        ..CacheLayer::new(1, 8)
    };
    CacheLayout {
        layers: windows.iter().map(layer).collect(),
        native: NativeDtype::F16,
        slots,
        slot_tokens,
        pass_tokens: slots * slot_tokens,
        recipe: Recipe::native(),
        absmax: None,
    }
}

#[test]
fn layers_with_the_same_window_are_of_a_kind() {
    let windows = [Some(20), None, Some(300), Some(20), None, Some(100)];
    let found = LayerKind::of(&layout(&windows, 2, 300));
    let kind = |window, layers: &[usize]| LayerKind {
        window,
        layers: layers.to_vec(),
    };
    // 300 tokens see each other whatever the window of 300.
    let expected = [
        kind(None, &[1, 2, 4]),
        kind(Some(20), &[0, 3]),
        kind(Some(100), &[5]),
    ];
    assert_eq!(found, expected);
    let pages = Pages::<usize>::new(&layout(&windows, 2, 300));
    let kinds: Vec<usize> = (0..6).map(|layer| pages.kind_of(layer)).collect();
    assert_eq!(kinds, [1, 0, 0, 1, 0, 2]);
}

/// A worker that gives pages numbers and remembers whose they are.
struct Fake {
    layout: CacheLayout,
    pages: Pages<usize>,
    /// Of every kind.
    free: Vec<Vec<usize>>,
    made: Vec<usize>,
    /// Kind and page, whose slot and number it is.
    owners: HashMap<(usize, usize), (usize, usize)>,
}

impl Fake {
    fn new(layout: CacheLayout) -> Self {
        let pages = Pages::new(&layout);
        let kinds = pages.kinds().len();
        Fake {
            layout,
            pages,
            free: vec![Vec::new(); kinds],
            made: vec![0; kinds],
            owners: HashMap::new(),
        }
    }

    fn take_back(&mut self, given: Vec<GivenBack<usize>>) {
        for GivenBack {
            kind,
            slot,
            number,
            page,
        } in given
        {
            let owner = self.owners.remove(&(kind, page));
            assert_eq!(owner, Some((slot, number)), "what is given back was held");
            self.free[kind].push(page);
        }
    }

    /// One pass, layer by layer as a forward pass stores and attends.
    fn pass(&mut self, rows: &[CacheRow]) {
        for layer in 0..self.layout.layers.len() {
            let layers = layer..layer + 1;
            let given = self.pages.begin(&layers, rows);
            self.take_back(given);
            let (free, made, owners) = (&mut self.free, &mut self.made, &mut self.owners);
            let take = |kind: usize, slot, number| {
                let page = free[kind].pop().unwrap_or_else(|| {
                    made[kind] += 1;
                    made[kind] - 1
                });
                let before = owners.insert((kind, page), (slot, number));
                assert_eq!(before, None, "a page of two owners");
                Ok::<_, ()>(page)
            };
            self.pages.grow(&layers, rows, take).unwrap();
            self.pages.stored(&layers, rows);
            assert_eq!(self.pages.begin(&layers, rows), [], "the same pass again");
            for row in rows {
                self.sees_its_own(layer, *row);
            }
        }
    }

    fn sees_its_own(&self, layer: usize, row: CacheRow) {
        self.pages.check_visible(layer, row);
        let kind = self.pages.kind_of(layer);
        let first = self.layout.layers[layer].first_visible(row.position);
        for number in first / PAGE..=row.position / PAGE {
            let page = self.pages.run(kind, row.slot).get(number);
            let owner = page.and_then(|page| self.owners.get(&(kind, page)));
            assert_eq!(owner, Some(&(row.slot, number)), "{row:?} in layer {layer}");
        }
    }

    /// Pages that are held and their most, by kind.
    fn held(&self) -> Vec<(usize, usize)> {
        let kinds = self.pages.kinds().iter().enumerate();
        kinds
            .map(|(number, kind)| {
                let held = self.owners.keys().filter(|(of, _)| *of == number).count();
                (held, kind.most_pages(&self.layout, self.layout.slots))
            })
            .collect()
    }
}

proptest! {
    /// Passes as a scheduler plans them, with cuts within the last one: every row finds what it sees,
    /// no page has two owners or gets lost, and no more are held than were announced.
    #[test]
    fn rows_find_what_they_see_and_no_page_is_lost(
        windows in proptest::collection::vec(proptest::option::of(1usize..90), 1..4),
        slots in 1usize..4,
        chunk in 1usize..70,
        steps in proptest::collection::vec((0usize..3, 0usize..100, 0usize..100), 1..60),
    ) {
        let slot_tokens = 260;
        let mut layout = layout(&windows, slots, slot_tokens);
        layout.pass_tokens = chunk;
        let mut fake = Fake::new(layout);
        let mut stored = vec![0; slots];
        for (action, share, cut) in steps {
            // Every slot takes a row for nothing, and some of what is left of the chunk.
            let mut left = chunk;
            let mut rows = Vec::new();
            let before = stored.clone();
            for (slot, stored) in stored.iter_mut().enumerate() {
                if action == 1 && (slot + share).is_multiple_of(3) {
                    continue;
                }
                let more = (left * ((share + 37 * slot) % 100) / 60).min(left);
                let to = (*stored + 1 + more).min(slot_tokens);
                left -= (to - *stored).saturating_sub(1);
                rows.extend(span(slot, *stored, to));
                *stored = to;
            }
            fake.pass(&rows);
            for (held, most) in fake.held() {
                prop_assert!(held <= most, "{held} of {most}");
            }
            if action == 2 {
                for (slot, (stored, before)) in stored.iter_mut().zip(before).enumerate() {
                    let to = before + cut % (*stored - before + 1);
                    let given = fake.pages.cut(slot, to).unwrap();
                    fake.take_back(given);
                    *stored = to;
                }
            }
            for (slot, stored) in stored.iter_mut().enumerate() {
                if *stored == slot_tokens {
                    let given = fake.pages.cut(slot, 0).unwrap();
                    fake.take_back(given);
                    *stored = 0;
                }
            }
        }
        for slot in 0..slots {
            let given = fake.pages.cut(slot, 0).unwrap();
            fake.take_back(given);
        }
        prop_assert!(fake.owners.is_empty());
        let free: Vec<usize> = fake.free.iter().map(Vec::len).collect();
        prop_assert_eq!(free, fake.made);
    }
}

#[test]
fn a_cut_behind_the_last_pass_is_refused_where_pages_are_gone() {
    let mut fake = Fake::new(layout(&[Some(20), None], 2, 500));
    fake.pass(&span(0, 0, 100));
    // Nothing is given back before the next pass.
    assert!(fake.pages.cut(0, 30).unwrap().len() > 2);
    fake.pass(&span(0, 30, 130));
    fake.pass(&span(0, 130, 140));
    assert_eq!(fake.pages.first_position(0, 0), 96);
    assert_eq!(fake.pages.first_position(1, 0), 0);
    let Err(BackendError::Unsupported(what)) = fake.pages.cut(0, 114) else {
        panic!("a cut to what is gone");
    };
    for part in [
        "slot 0",
        "114 tokens",
        "window of 20",
        "position 96",
        "from 95",
    ] {
        assert!(what.contains(part), "{part}: {what}");
    }
    // Nothing was changed; a cut that is none is allowed anywhere, and what is kept suffices here.
    assert_eq!(fake.pages.tokens(1, 0), 140);
    assert!(fake.pages.cut(1, 3).is_ok());
    assert!(fake.pages.cut(0, 115).is_ok());
    // A pass over other slots ends what could be taken back.
    fake.pass(&span(0, 115, 200));
    fake.pass(&span(1, 0, 1));
    assert!(fake.pages.cut(0, 150).is_err());
    assert!(fake.pages.cut(0, 0).is_ok());
    fake.pass(&span(0, 0, 5));
}

#[test]
#[should_panic(expected = "position 40 of slot 0 sees what was given back")]
fn rows_behind_what_is_kept_are_refused() {
    let mut fake = Fake::new(layout(&[Some(20)], 1, 500));
    fake.pass(&span(0, 0, 100));
    fake.pass(&span(0, 100, 101));
    fake.pass(&span(0, 40, 41));
}

#[test]
#[should_panic(expected = "a gap before position 7 of slot 1")]
fn gaps_are_refused() {
    let mut fake = Fake::new(layout(&[None], 2, 50));
    fake.pass(&span(1, 0, 5));
    fake.pass(&span(1, 7, 8));
}
