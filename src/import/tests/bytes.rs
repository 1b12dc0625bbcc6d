//! Foreign bytes and orders: truncation, mutation, permutation, swapped arms.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Cut anywhere, a log gives an error that names it or fewer samples, never other ones.
#[test]
fn a_log_cut_at_any_byte_is_refused_or_shorter() {
    let folder = Folder::new();
    let text = lines(&[
        line(0, "a", json!(1)),
        line(1, "b", json!(0)),
        line(2, "ü", json!(1)),
    ]);
    let whole = folder.lm_eval(text.as_bytes(), text.as_bytes()).unwrap();
    let mut refused = 0;
    for end in 0..text.len() {
        match folder.lm_eval(text.as_bytes(), &text.as_bytes()[..end]) {
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(error.contains("candidate.jsonl:"), "{error}");
            }
            Ok(logs) => {
                let found = logs.candidate.samples;
                assert_eq!(
                    found,
                    whole.candidate.samples[..found.len()],
                    "cut at {end}"
                );
                assert_eq!(
                    text.as_bytes()[..end]
                        .iter()
                        .filter(|b| **b == b'{')
                        .count(),
                    2 * found.len()
                );
            }
        }
    }
    assert!(refused > text.len() * 9 / 10);
}

#[test]
fn columnar_files_with_any_byte_changed_are_read_or_refused() {
    let bytes = fs::read(fixture("lighteval-older-native.parquet")).unwrap();
    let folder = Folder::new();
    for at in (0..bytes.len()).step_by(13) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        let files = folder.file("details.parquet", bytes);
        if let Err(error) = lighteval::read(&files, &files, &lighteval::Options::default()) {
            assert!(error.to_string().contains(':'), "{error}");
        }
    }
}

/// Outcomes of an arm by question; `None` where it was not asked.
fn arm() -> impl Strategy<Value = Vec<Option<bool>>> {
    proptest::collection::vec(proptest::option::weighted(0.8, any::<bool>()), 8)
}

fn arm_lines(arm: &[Option<bool>]) -> Vec<Value> {
    let asked = arm
        .iter()
        .enumerate()
        .filter_map(|(at, right)| Some((at, (*right)?)));
    asked
        .map(|(at, right)| line(at, &format!("question {at}"), json!(right)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_never_matters_and_a_swap_swaps_lost_and_gained(
        (native, candidate) in (arm(), arm()),
        seed in any::<prop::sample::Index>(),
    ) {
        let (a, b) = (arm_lines(&native), arm_lines(&candidate));
        prop_assume!(!a.is_empty() && !b.is_empty());
        let folder = Folder::new();
        let read = |a: &[Value], b: &[Value]| {
            folder.lm_eval(lines(a).as_bytes(), lines(b).as_bytes()).and_then(|logs| pair(&logs)).unwrap()
        };
        let first = read(&a, &b);
        let mut turned = b.clone();
        turned.rotate_left(seed.index(b.len()));
        turned.reverse();
        let second = read(&a, &turned);
        let names = |paired: &Paired| paired.cases.iter().map(|case| case.name.clone()).collect::<Vec<_>>();
        prop_assert_eq!(names(&first), names(&second));
        prop_assert_eq!(counts(&first), counts(&second));
        prop_assert_eq!(kinds(&first), kinds(&second));
        prop_assert_eq!(&first.case_set_sha256, &second.case_set_sha256);

        let swapped = read(&b, &a);
        let (lost, gained) = counts(&first);
        prop_assert_eq!(counts(&swapped), (gained, lost));
        prop_assert_eq!(swapped.faults.len(), first.faults.len());
        // Lost and gained follow from the outcomes alone.
        let flips = |from: bool| native.iter().zip(&candidate).filter(|pair| *pair == (&Some(from), &Some(!from))).count();
        prop_assert_eq!((lost, gained), (flips(true), flips(false)));
        let once = native.iter().zip(&candidate).filter(|(a, b)| a.is_some() != b.is_some()).count();
        prop_assert_eq!(first.faults.len(), once);
    }

    #[test]
    fn mutated_logs_are_read_or_refused(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        which in 0..3_usize,
    ) {
        let folder = Folder::new();
        let name = ["lm-eval-native.jsonl", "inspect-native.json", "table.csv"][which];
        let mut bytes = match which {
            2 => b"case,correct,content\na,1,\"q, r\"\nb,0,s\n".to_vec(),
            _ => fs::read(fixture(name)).unwrap(),
        };
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let files = folder.file(name, bytes);
        let logs = match which {
            0 => lm_eval::read(&files, &files, &lm_eval::Options { filter: Some("strict-match".to_owned()), metric: None }),
            1 => inspect::read(&files, &files, &inspect::Options::default()),
            _ => csv::read(&files, &files, &csv::Options::default()),
        };
        match logs.and_then(|logs| pair(&logs)) {
            // Both arms are the same file: nothing can be lost.
            Ok(paired) => prop_assert_eq!(counts(&paired), (0, 0)),
            Err(error) => prop_assert!(error.to_string().contains("found"), "{}", error),
        }
    }
}
