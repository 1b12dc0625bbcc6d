use super::*;
use proptest::prelude::*;

#[test]
fn sizes_of_every_unit() {
    let cases = [
        ("40GiB", 40 << 30),
        ("36MiB", 36 << 20),
        ("32GB", 32_000_000_000),
        ("1.5 GiB", 3 << 29),
        ("0.1KiB", 102),
        ("7", 7),
        ("7 B", 7),
        ("2kB", 2000),
        ("1TB", 1_000_000_000_000),
        ("16777215.999999999TiB", 18_446_744_073_709_550_516),
    ];
    for (text, bytes) in cases {
        assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
    }
}

#[test]
fn other_texts_are_refused() {
    for text in [
        "", "GiB", "40G", "40gib", "-1GiB", "1.GiB", ".5GiB", "1.2.3", "1e3", "1 000", "٣B",
    ] {
        assert_eq!(
            text.parse::<Size>(),
            Err(SizeError::Syntax(text.to_owned())),
            "{text}"
        );
    }
    for text in ["16777216TiB", "99999999999999999999"] {
        assert_eq!(
            text.parse::<Size>(),
            Err(SizeError::TooLarge(text.to_owned()))
        );
    }
}

#[test]
fn sizes_print_without_a_fraction() {
    assert_eq!(Size(40 << 30).to_string(), "40 GiB");
    assert_eq!(Size(36 << 20).to_string(), "36 MiB");
    assert_eq!(Size(3 << 29).to_string(), "1536 MiB");
    assert_eq!(Size(1001).to_string(), "1001 B");
    assert_eq!(Size(0).to_string(), "0 B");
}

proptest! {
    #[test]
    fn printed_sizes_read_back(bytes in any::<u64>(), shift in 0u32..41) {
        let size = Size(bytes >> shift << shift);
        prop_assert_eq!(size.to_string().parse(), Ok(size));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9.]{0,30}[kKMGTiB ]{0,4}|\\PC{0,10}") {
        let _ = text.parse::<Size>().map_err(|error| error.to_string());
    }
}
