//! What a misspelt recipe or format probably meant.

use super::NAMED;

/// Hint for a text that is neither a name nor a specification.
pub(super) fn recipe_hint(found: &str) -> String {
    let upper = found.to_ascii_uppercase();
    let lower = found.to_ascii_lowercase();
    if let Some((name, _)) = NAMED.iter().find(|(name, _)| *name == upper) {
        return format!("; names are upper-case: {name}");
    }
    if let Some((name, _)) = NAMED.iter().find(|(name, _)| found.starts_with(name)) {
        return format!(
            "; a name stands alone, options follow the long form of {name}: {}",
            spec_of(name)
        );
    }
    if ["A", "R", "S"].contains(&upper.as_str()) {
        return format!(
            "; the second letter is missing: {upper}F (fixed scales) or {upper}D (dynamic scales)"
        );
    }
    match lower.as_str() {
        "native" | "auto" | "none" | "fp16" | "f16" | "half" | "float16" | "bf16" | "bfloat16"
        | "k16v16" => "; for the 16-bit cache write native".to_owned(),
        "fp8" | "k8v8" | "e4m3" | "fp8_e4m3" | "float8_e4m3fn" => {
            "; for both in FP8 write SF (fixed scales) or SD (dynamic scales)".to_owned()
        }
        "k16v8" => "; for values in FP8 write AF (fixed scales) or AD (dynamic scales)".to_owned(),
        "k8v16" => "; for keys in FP8 write RF (fixed scales) or RD (dynamic scales)".to_owned(),
        "e5m2" | "fp8_e5m2" | "int8" | "int4" | "int4/32" | "int4/64" => format!(
            "; say where it applies: k={format},v={format}",
            format = lower.trim_start_matches("fp8_")
        ),
        _ if lower.starts_with("k=") || lower.starts_with("k:") => {
            "; keys come first and in lower case: k=FORMAT,v=FORMAT".to_owned()
        }
        _ if lower.starts_with("v=") => "; k=FORMAT comes first, then v=FORMAT".to_owned(),
        _ => String::new(),
    }
}

fn spec_of(name: &str) -> &'static str {
    NAMED
        .iter()
        .find(|(named, _)| *named == name)
        .map_or("", |(_, spec)| spec)
}

/// Hint for an unknown number format.
pub(super) fn format_hint(found: &str) -> String {
    let lower = found.to_ascii_lowercase();
    let meant = match lower.as_str() {
        "fp8" | "f8" | "float8" => return "; FP8 is e4m3 or e5m2".to_owned(),
        "fp8_e4m3" | "e4m3fn" | "e4m3" | "fp8e4m3" | "float8_e4m3fn" => "e4m3",
        "fp8_e5m2" | "e5m2" | "fp8e5m2" | "float8_e5m2" => "e5m2",
        "i8" | "q8" | "int8" => "int8",
        "i4" | "q4" | "kv4" | "uint4" => "int4",
        "fp4" | "nvfp4" | "mxfp4" => return "; 4-bit floats are not stored, int4 is".to_owned(),
        _ if lower.starts_with("int4/") || lower.starts_with("int4:") => {
            return "; groups of int4 have 32 elements (int4) or 64 (int4/64)".to_owned();
        }
        "fp16" | "f16" | "half" | "float16" | "bf16" | "bfloat16" | "auto" | "16" | "native" => {
            "native"
        }
        _ => return String::new(),
    };
    format!("; write {meant}")
}
