//! Every kernel, every generation; what is kept, and what is refused.

use rayon::prelude::*;

use super::testing::has_compiler;
use super::*;
use crate::backend::cuda::attention;
use crate::backend::cuda::parts::PARTS;
use crate::backend::cuda::tests::alone::is_alone;

/// Each alone: quick compilation, which takes a sixth of the time, changes what others of its process
/// give meanwhile. One by one, since the compiler hardly works for several threads of a process.
mod every_kernel_compiles {
    use super::*;

    macro_rules! for_generations {
        ($($name:ident $generation:expr;)+) => {
            $(
                #[test]
                fn $name() {
                    if has_compiler() && is_alone(module_path!(), stringify!($name)) {
                        compile_every_kernel_quickly($generation);
                    }
                }
            )+

            #[test]
            fn for_every_generation() {
                assert_eq!([$($generation),+], testing::GENERATIONS.map(|(generation, _)| generation));
            }
        };
    }

    for_generations! {
        for_8_0 (8, 0);
        for_9_0 (9, 0);
        for_10_0 (10, 0);
    }
}

fn compile_every_kernel_quickly(capability: (i32, i32)) {
    let mut quickly = Vec::new();
    if version().unwrap().0 >= (13, 0) {
        quickly.push("--Ofast-compile=max".to_owned());
    }
    let mut generations = testing::GENERATIONS.into_iter();
    let (_, shared_limit) = generations.find(|(of, _)| *of == capability).unwrap();
    let units = attention::testing::units(capability, shared_limit);
    let experts = [false, true].map(|bf16| Unit::experts(bf16, capability == (9, 0)));
    let units: Vec<Unit> = PARTS
        .iter()
        .map(Unit::part)
        .chain(experts)
        .chain(units)
        .collect();
    assert!(units.len() > 20, "{}", units.len());
    units.into_par_iter().for_each(|unit| {
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
