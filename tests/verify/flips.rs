//! Random damage to any byte of a run.

use std::fs;

use kvassay::stats::CounterRng;

use crate::synthetic::Synthetic;
use crate::{Outcome, files, verify, with_file};

/// Damaged bytes in each file.
const FLIPS: u64 = 40;

#[test]
fn no_flipped_byte_of_the_evidence_goes_unseen() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("AD"));
    let certificate = kvassay::store::read_certificate(&kept).unwrap();
    let is_evidence = |name: &str| certificate.evidence.iter().any(|file| file.path == name);
    let (mut caught, mut elsewhere) = (0, 0);
    for (number, name) in files(&run).iter().enumerate() {
        let path = run.join(name);
        let before = fs::read(&path).unwrap();
        if before.is_empty() {
            assert_eq!(name, "run.lock");
            continue;
        }
        let mut rng = CounterRng::new(11, number as u64);
        for _ in 0..FLIPS {
            let at = rng.below(before.len() as u64) as usize;
            let bit = rng.below(8);
            let mut bytes = before.clone();
            bytes[at] ^= 1 << bit;
            let outcome = with_file(&path, Some(&bytes), || verify(&kept, &run));
            if is_evidence(name) {
                assert!(
                    outcome.is_caught(),
                    "{name}, byte {at}, bit {bit} went unseen"
                );
                caught += 1;
            } else {
                // Other candidates, the calibration that `AD` does not use, certificates.
                assert!(!outcome.is_caught(), "{name}: {}", outcome.text());
                elsewhere += 1;
            }
        }
    }
    println!("{caught} flips of evidence caught, {elsewhere} elsewhere without effect");
    assert!(caught >= 16 * FLIPS, "{caught}");
    assert!(elsewhere >= 6 * FLIPS, "{elsewhere}");
}

#[test]
fn no_flipped_byte_of_a_certificate_goes_unseen_but_in_its_tool() {
    let synthetic = Synthetic::new();
    let (run, kept) = (synthetic.run(), synthetic.kept("AD"));
    let before = fs::read(&kept).unwrap();
    let text = String::from_utf8(before.clone()).unwrap();
    let tool = text.find("\"tool\"").unwrap()..text.find("\"protocol\"").unwrap();
    let mut rng = CounterRng::new(12, 0);
    let (mut caught, mut spaces) = (0, 0);
    for _ in 0..600 {
        let at = rng.below(before.len() as u64) as usize;
        let bit = rng.below(8);
        let mut bytes = before.clone();
        bytes[at] ^= 1 << bit;
        let same = serde_json::from_slice::<serde_json::Value>(&bytes)
            .is_ok_and(|tree| tree == serde_json::from_str::<serde_json::Value>(&text).unwrap());
        match with_file(&kept, Some(&bytes), || verify(&kept, &run)) {
            Outcome::Verified => {
                // White space that stays white space says the same.
                assert!(
                    tool.contains(&at) || same,
                    "byte {at}, bit {bit} went unseen"
                );
                spaces += 1;
            }
            _ => caught += 1,
        }
    }
    println!("{caught} flips of a certificate caught, {spaces} without meaning");
    assert!(caught > 400, "{caught}");
}
