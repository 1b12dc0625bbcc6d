//! Every kernel, every generation; what is kept, and what is refused.

use rayon::prelude::*;

use super::testing::has_compiler;
use super::*;
use crate::backend::cuda::attention;
use crate::backend::cuda::parts::PARTS;

/// Set in the process that compiles.
const INSIDE: &str = "KVASSAY_TEST_COMPILES_QUICKLY";

/// In a process of its own: quick compilation, which takes a sixth of the time, changes what others
/// of its process give meanwhile.
#[test]
fn every_kernel_compiles_for_every_generation() {
    if !has_compiler() {
        return;
    }
    if std::env::var_os(INSIDE).is_some() {
        compile_every_kernel_quickly();
        return;
    }
    let name = "backend::cuda::compile::tests::every_kernel_compiles_for_every_generation";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(INSIDE, "")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains("test result: ok. 1 passed"), "{said}");
}

fn compile_every_kernel_quickly() {
    let mut quickly = Vec::new();
    if version().unwrap().0 >= (13, 0) {
        quickly.push("--Ofast-compile=max".to_owned());
    }
    let work: Vec<_> = testing::GENERATIONS
        .into_iter()
        .flat_map(|(capability, shared_limit)| {
            let units = attention::testing::units(capability, shared_limit);
            let hopper = capability == (9, 0);
            let experts = [false, true].map(|bf16| Unit::experts(bf16, hopper));
            let units = PARTS.iter().map(Unit::part).chain(experts).chain(units);
            units.map(move |unit| (capability, unit))
        })
        .collect();
    assert!(work.len() > 3 * 20, "{}", work.len());
    work.into_par_iter().for_each(|(capability, unit)| {
        let options = [binary_options(&unit, capability), quickly.clone()].concat();
        let binary = compile(&unit.source, &options).unwrap().binary().unwrap();
        assert_eq!(
            &binary[..4],
            b"\x7fELF",
            "{capability:?} {:?}",
            unit.defines
        );
    });
}

#[test]
fn a_refused_source_says_why() {
    if !has_compiler() {
        return;
    }
    let unit = Unit {
        source: "nonsense".to_owned(),
        defines: Vec::new(),
        specific: false,
        purpose: "nothing",
    };
    let message = binary(&unit, (9, 0), None).unwrap_err().to_string();
    assert!(
        message.contains("nonsense") && message.contains("sm_90"),
        "{message}"
    );
}

#[test]
fn a_damaged_file_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep").join("a.cubin");
    keep(&path, b"binary").unwrap();
    assert_eq!(read_kept(&path).unwrap(), b"binary");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        assert_eq!(read_kept(&path), None);
        fs::write(&path, &whole[..at]).unwrap();
        assert_eq!(read_kept(&path), None);
    }
    keep(&path, b"binary").unwrap();
    assert_eq!(read_kept(&path).unwrap(), b"binary");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_binary_is_compiled_once() {
    if !has_compiler() {
        return;
    }
    let unit = Unit {
        source: "extern \"C\" __global__ void nothing() {}".to_owned(),
        defines: Vec::new(),
        specific: false,
        purpose: "nothing",
    };
    let folder = tempfile::tempdir().unwrap();
    let [first, again] = [(); 2].map(|()| binary(&unit, (9, 0), Some(folder.path())).unwrap());
    assert_eq!(first.1, Delivery::Compiled);
    assert_eq!(again, (first.0, Delivery::Kept));
    let other = binary(&unit, (8, 0), Some(folder.path())).unwrap();
    assert_eq!(other.1, Delivery::Compiled);
    assert_ne!(other.0, again.0);
}
