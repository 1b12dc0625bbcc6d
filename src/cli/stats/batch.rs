//! `kvassay stats batch`: JSON lines in, JSON lines out.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::exit::UntilClosed;
use super::super::{Exit, Failure};
use super::request::Request;
use crate::schema::parse_strict;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Answers every line that is not blank, in order, until nobody reads the answers: the input may be
/// without end.
///
/// # Errors
/// Streams that fail. Lines that cannot be answered give [`Exit::BadInput`].
pub(super) fn run(
    input: &mut dyn BufRead,
    out: &mut UntilClosed<impl Write>,
) -> Result<Exit, Failure> {
    let mut exit = Exit::Holds;
    let mut line = Vec::new();
    let mut first = true;
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line).map_err(|error| {
            let is_input = error.kind() == std::io::ErrorKind::IsADirectory;
            let error = anyhow::Error::new(error).context("cannot read standard input");
            if is_input {
                Failure::input(error)
            } else {
                Failure::worker(error)
            }
        })?;
        if read == 0 {
            return Ok(exit);
        }
        let text = match line.strip_prefix(BOM) {
            Some(rest) if first => rest,
            _ => &line,
        };
        first = false;
        if text.trim_ascii().is_empty() {
            continue;
        }
        let (id, result) = answer(text);
        if result.is_err() {
            exit = Exit::BadInput;
        }
        let rest = match result {
            Ok(values) => values,
            Err(error) => Map::from_iter([("error".to_owned(), Value::String(error))]),
        };
        let response = serde_json::to_string(&Response { id, rest }).map_err(Failure::worker)?;
        writeln!(out, "{response}")?;
        if out.is_closed() {
            return Ok(exit);
        }
    }
}

/// The one field of a line that is given back as it was written: as a number it might be another one.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Response<'a> {
    /// `null` for a line that has none.
    id: Option<&'a RawValue>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The id of a line as it stands there, and its result or what is wrong with it.
fn answer(line: &[u8]) -> (Option<&RawValue>, Result<Map<String, Value>, String>) {
    // An object with a number or key that cannot be taken has an id all the same.
    let is_object = line.trim_ascii_start().starts_with(b"{");
    let named = serde_json::from_slice::<Named<'_>>(line).ok();
    let named = named.filter(|_| is_object);
    let is_json = named.is_some();
    let id = named.and_then(|named| named.id);
    let object = match parse_strict(line) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return (None, Err("not a JSON object".to_owned())),
        Err(error) if is_json => return (id, Err(error.to_string())),
        Err(error) => return (None, Err(format!("not a JSON line: {error}"))),
    };
    let request = Request::from_json(&object).map_err(|error| error.to_string());
    let result = request.and_then(|r| r.compute().map_err(|error| error.to_string()));
    (id, result)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answers(input: &[u8]) -> (Exit, Vec<Value>) {
        let mut out = Vec::new();
        let exit = run(&mut &input[..], &mut UntilClosed::new(&mut out)).unwrap();
        let lines = out.split(|&byte| byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        (
            exit,
            lines
                .map(|line| serde_json::from_slice(line).unwrap())
                .collect(),
        )
    }

    /// A reader that leaves after the first answer.
    struct Leaves(usize);

    impl Write for Leaves {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 > 0 {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            self.0 += usize::from(bytes.contains(&b'\n'));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// `yes LINE | kvassay stats batch | head -1` comes to an end.
    #[test]
    fn a_batch_ends_where_nobody_reads_its_answers() {
        let line = b"{\"method\":\"sign_test\",\"positive\":1,\"negative\":0}\n";
        let lines = line.repeat(10);
        let mut input = &lines[..];
        let exit = run(&mut input, &mut UntilClosed::new(Leaves(0))).unwrap();
        assert_eq!((exit, input.len()), (Exit::Holds, 8 * line.len()));
    }

    /// What cannot be taken of an object leaves its id as it is.
    #[test]
    fn lines_with_impossible_numbers_keep_their_ids() {
        let input = b"{\"id\":10,\"method\":\"holm\",\"p\":[1e999]}\n\
            {\"id\":11,\"method\":\"holm\",\"p\":[1],\"p\":[2]}\n[1e999]\n{\"id\":12";
        let (exit, lines) = answers(input);
        assert_eq!(exit, Exit::BadInput);
        let ids: Vec<&Value> = lines.iter().map(|line| &line["id"]).collect();
        assert_eq!(ids, [&10.into(), &11.into(), &Value::Null, &Value::Null]);
        let error = lines[0]["error"].as_str().unwrap();
        assert!(error.starts_with("number out of range"), "{error}");
    }

    #[test]
    fn good_lines_are_answered_around_bad_ones() {
        let input = b"\xef\xbb\xbf{\"id\":1,\"method\":\"sign_test\",\"positive\":1,\"negative\":0}\r\n\n  \n\
            {\"id\":{\"a\":[2]},\"method\":\"nope\"}\nnot json\n[1]\n\xff\xfe\n\
            {\"method\":\"mcnemar_exact\",\"lost\":0,\"gained\":0}";
        let (exit, lines) = answers(input);
        assert_eq!(exit, Exit::BadInput);
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[0]["p_two_sided"], 1.0);
        assert_eq!(lines[1]["id"], serde_json::json!({"a": [2]}));
        for line in &lines[1..5] {
            assert!(line["error"].is_string(), "{line}");
        }
        for line in &lines[2..] {
            assert_eq!(line["id"], Value::Null);
        }
        assert_eq!(lines[5].to_string(), r#"{"id":null,"p":1.0,"log10_p":0.0}"#);
    }

    #[test]
    fn an_id_comes_back_as_it_was_written() {
        for id in [
            "12345678901234567890123",
            "1.10",
            "\"\\u00e9\"",
            "[1, {\"a\":1e30}]",
            "null",
        ] {
            let line =
                format!("{{\"id\":{id} ,\"method\":\"mcnemar_exact\",\"lost\":0,\"gained\":0}}");
            let mut out = Vec::new();
            run(&mut line.as_bytes(), &mut UntilClosed::new(&mut out)).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text, format!("{{\"id\":{id},\"p\":1.0,\"log10_p\":0.0}}\n"));
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let (exit, lines) =
            answers(b"{\"id\":1,\"method\":\"mcnemar_exact\",\"lost\":1,\"gained\":2,\"lost\":5}");
        assert_eq!(exit, Exit::BadInput);
        let error = lines[0]["error"].as_str().unwrap();
        assert!(error.contains("key `lost` a second time"), "{error}");
    }

    #[test]
    fn inputs_may_be_nested() {
        let flat = br#"{"id":1,"method":"clopper_pearson_upper","k":6,"n":1319,"alpha":0.05}"#;
        let nested =
            br#"{"id":1,"method":"clopper_pearson_upper","inputs":{"k":6,"n":1319,"alpha":0.05}}"#;
        assert_eq!(answers(flat), answers(nested));
        assert_eq!(answers(nested).0, Exit::Holds);
    }

    #[test]
    fn nothing_asked_is_nothing_wrong() {
        assert_eq!(answers(b"").0, Exit::Holds);
        assert_eq!(answers(b"\n\n").0, Exit::Holds);
    }

    proptest! {
        #[test]
        fn any_bytes_give_one_answer_per_line(input in prop::collection::vec(any::<u8>(), 0..200)) {
            let asked = input.split(|&byte| byte == b'\n');
            let asked = asked.filter(|line| !line.trim_ascii().is_empty()).count();
            let (_, lines) = answers(&input);
            prop_assert!(lines.len() == asked || input.starts_with(BOM));
        }

        #[test]
        fn any_counts_give_an_answer(lost in any::<i64>(), gained in 0_u64..2_000, n in 0_u64..5_000, alpha in -0.1..1.1_f64) {
            for method in ["tango_lower", "tango_upper", "mcnemar_exact"] {
                let line = serde_json::json!({"id":7,"method":method,"lost":lost % 3_000,
                    "gained":gained,"n":n,"alpha":alpha});
                let (_, lines) = answers(line.to_string().as_bytes());
                prop_assert_eq!(&lines[0]["id"], 7);
                prop_assert!(lines[0]["error"].is_string() || lines[0].as_object().unwrap()
                    .values().all(Value::is_number));
            }
        }
    }
}
