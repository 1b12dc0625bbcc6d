//! Sequences over several spans of tokens.

use super::*;

/// Query heads, heads of keys and values and their size.
type Heads = (usize, usize, usize);

fn shape((heads, kv_heads, head_dim): Heads) -> Shape {
    Shape {
        layers: 1,
        heads,
        kv_heads,
        head_dim,
    }
}

/// A test for each size of heads: one by one they are short enough for a sanitizer.
macro_rules! for_each {
    ($check:expr; $($name:ident $heads:expr;)+) => {
        $(
            #[test]
            fn $name() {
                let Some(backend) = gpu() else { return };
                $check(&backend, $heads);
            }
        )+
    };
}

/// Rows beyond the first span, alone and as prompts in chunks of every kind.
mod have_the_same_bits_in_every_chunk {
    use super::*;

    macro_rules! at_sizes {
        ($check:expr) => {
            for_each! {
                $check;
                heads_of_32 (4, 2, 32);
                heads_of_64 (4, 1, 64);
                heads_of_96 (3, 3, 96);
                heads_of_128 (8, 2, 128);
                heads_of_256 (2, 1, 256);
            }
        };
    }

    fn long(backend: &CudaBackend, heads: Heads, exact: bool) {
        for recipe in ["native", "SD", "AF", "k=e5m2:dynamic,v=int8:dynamic"] {
            long_sequences(backend, shape(heads), recipe, exact, None);
        }
    }

    mod with_queries_of_16_bits {
        use super::*;

        at_sizes!(|backend: &_, heads| long(backend, heads, false));
    }

    mod with_queries_of_32_bits {
        use super::*;

        at_sizes!(|backend: &_, heads| long(backend, heads, true));
    }

    /// Recipes whose numbers blocks convert before they use them.
    mod with_converted_numbers {
        use super::*;

        fn staged(backend: &CudaBackend, (heads, recipe, exact): (Heads, &str, bool)) {
            for window in [None, Some(1500)] {
                long_sequences(backend, shape(heads), recipe, exact, window);
            }
        }

        for_each! {
            staged;
            heads_of_32 ((4, 2, 32), "k=e4m3:fixed,v=int8:dynamic,sink=70", true);
            heads_of_64 ((4, 1, 64), "k=int4,v=int4-64", false);
            heads_of_96 ((3, 3, 96), "k=e4m3,v=int4", true);
            heads_of_128 ((8, 2, 128), "k=native,v=int4,sink=4", false);
            heads_of_256 ((2, 1, 256), "k=int4-64,v=int4", false);
        }
    }
}

/// Windows within a tile, a span, and over several spans: rows of a block begin in different ones.
mod with_windows_have_the_same_bits_in_every_chunk {
    use super::*;

    macro_rules! at_sizes_of_windows {
        ($check:expr) => {
            for_each! {
                $check;
                heads_of_32 (4, 2, 32);
                heads_of_64 (4, 1, 64);
                heads_of_128 (8, 2, 128);
                heads_of_256 (4, 1, 256);
            }
        };
    }

    fn long(backend: &CudaBackend, heads: Heads, recipe: &str, exact: bool) {
        for window in [20, 512, 1024, 1500] {
            long_sequences(backend, shape(heads), recipe, exact, Some(window));
        }
    }

    mod native {
        use super::*;

        at_sizes_of_windows!(|backend: &_, heads| long(backend, heads, "native", false));
    }

    mod keys_and_values_in_fp8 {
        use super::*;

        at_sizes_of_windows!(|backend: &_, heads| long(backend, heads, "SD", true));
    }

    mod values_in_fp8 {
        use super::*;

        at_sizes_of_windows!(|backend: &_, heads| long(backend, heads, "AD", false));
    }
}

/// Tokens of a sequence: three spans, or two where `KVASSAY_TEST_SHORT` is set, for sanitizers, under
/// which three take hours.
fn tokens() -> usize {
    match std::env::var_os("KVASSAY_TEST_SHORT") {
        Some(_) => 1100,
        None => 2300,
    }
}

pub fn long_sequences(
    backend: &CudaBackend,
    shape: Shape,
    recipe: &str,
    exact: bool,
    window: Option<usize>,
) {
    let tokens = tokens();
    let mut layout = shape.layout(recipe, NativeDtype::F16);
    layout.layers[0].window = window;
    layout.slot_tokens = tokens;
    let suite = suite(backend);
    let (k, v) = (
        noise(1, tokens * shape.kv_width()),
        noise(2, tokens * shape.kv_width()),
    );
    let q = noise(3, tokens * shape.q_width());
    let upload = |x: &[f32], width: usize| {
        let half = x.iter().map(|&x| half::f16::from_f32(x)).collect();
        let data = if exact {
            TensorData::F32(x.to_vec())
        } else {
            TensorData::F16(half)
        };
        suite.upload_as(data, width)
    };
    let mut cache = backend.cache(&layout).unwrap();
    let mut run = |slot: usize, from: usize, to: usize| {
        let rows = span(slot, from, to);
        let part = |x: &[f32], width: usize| suite.upload(&x[from * width..to * width], width);
        let (k, v) = (part(&k, shape.kv_width()), part(&v, shape.kv_width()));
        backend.store(&mut cache, 0, &k, &v, &rows).unwrap();
        let q = upload(
            &q[from * shape.q_width()..to * shape.q_width()],
            shape.q_width(),
        );
        let mut out = backend.tensor(to - from, shape.q_width()).unwrap();
        backend.attend(&cache, 0, &q, &rows, &mut out).unwrap();
        bits(&backend.to_host(&out).unwrap())
    };
    let whole = run(0, 0, tokens);
    let mut from = 0;
    for (step, chunk) in [1000, 1, 22, 1, 1, 5, 700, 1, 3, 317, 1, 200, 48]
        .into_iter()
        .enumerate()
    {
        let to = (from + chunk).min(tokens);
        let part = run(1 + step % 2, from, to);
        // Both slots hold the same sequence.
        let other = run(2 - step % 2, from, to);
        let expected = &whole[from * shape.q_width()..to * shape.q_width()];
        assert!(
            part == expected && other == expected,
            "{shape:?} {recipe} {window:?} from {from} to {to}"
        );
        from = to;
        if from == tokens {
            return;
        }
    }
    panic!("{from} of {tokens} tokens");
}
