//! Task definitions as panels are built from them.

pub use crate::schema::{
    HaystackKind, Source, SourceFormat, Task, TaskKind, builtin_task, builtin_tasks,
};

/// Puts values into the places of a text, each `{name}` once; braces inside values stay.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        let place = values.iter().find_map(|(name, value)| {
            let after = from[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((value, after))
        });
        match place {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('{');
                rest = &from[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in_once() {
        assert_eq!(
            fill("{a} and {b}, {c}", &[("a", "{b}"), ("b", "x{a}")]),
            "{b} and x{a}, {c}"
        );
        assert_eq!(fill("{", &[("a", "1")]), "{");
    }
}
