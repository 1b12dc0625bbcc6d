use super::super::parse;
use super::super::testing::Builder;
use super::*;

const PATTERN: &str = "gemma3.attention.sliding_window_pattern";

fn has_window(builder: &Builder) -> Result<Vec<bool>, ModelError> {
    let header = parse("a.gguf", &builder.bytes())?;
    let keys = Keys {
        metadata: &header.metadata,
        architecture: "gemma3",
    };
    keys.has_window(3)
}

#[test]
fn windows_follow_flags_of_layers_or_every_so_many() {
    let flags = |bytes: &[u8]| {
        let count = bytes.len() as u64;
        has_window(&Builder::new().array(PATTERN, 7, count, bytes.to_vec()))
    };
    assert_eq!(flags(&[1, 0, 1]).unwrap(), [true, false, true]);
    assert_eq!(has_window(&Builder::new()).unwrap(), [true; 3]);
    let every = has_window(&Builder::new().u32(PATTERN, 2));
    assert_eq!(every.unwrap(), [true, false, true]);
    let few = flags(&[1, 0]).unwrap_err().to_string();
    let expected = "found 2 flags, expected one for each of 3 layers";
    assert!(few.contains(PATTERN) && few.ends_with(expected), "{few}");
    let numbers = has_window(&Builder::new().i32s(PATTERN, &[1, 0, 1])).unwrap_err();
    let named = format!("a.gguf: unsupported: {PATTERN} = 3 whole numbers");
    assert_eq!(numbers.to_string(), named);
}
