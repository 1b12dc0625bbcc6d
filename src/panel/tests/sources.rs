//! Finding and reading source data.

use std::fs::File;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::panel::{gsm8k, wikipedia};

fn questions(data: &Data) -> Result<Vec<gsm8k::Question>, PanelError> {
    gsm8k::read(&data.resolve().locate(&builtin_task("gsm8k").unwrap())?)
}

fn articles(data: &Data) -> Result<Vec<wikipedia::Article>, PanelError> {
    wikipedia::read(
        &data
            .resolve()
            .locate(&builtin_task("wikipedia-nll").unwrap())?,
    )
}

fn write_parquet(path: &Path, columns: [&str; 2], rows: &[[&str; 2]]) {
    let schema = format!(
        "message rows {{ OPTIONAL INT32 id; OPTIONAL BINARY {} (UTF8); REQUIRED BINARY {} (UTF8); }}",
        columns[0], columns[1]
    );
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let absent = vec![0_i16; rows.len()];
    column
        .typed::<parquet::data_type::Int32Type>()
        .write_batch(&[], Some(&absent), None)
        .unwrap();
    column.close().unwrap();
    for index in 0..2 {
        let values: Vec<ByteArray> = rows.iter().map(|row| row[index].into()).collect();
        let present = vec![1_i16; rows.len()];
        let levels = (index == 0).then_some(present.as_slice());
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, levels, None)
            .unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_known_file_with_other_bytes_is_refused() {
    let data = Data::new();
    data.write("gsm8k/test.jsonl", "{}\n");
    let error = questions(&data).unwrap_err().to_string();
    assert!(error.contains("test.jsonl: SHA-256: found ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"), "{error}");
    assert!(error.contains("expected 3730d312"), "{error}");
}

#[test]
fn unknown_files_are_recorded_as_unpinned() {
    let data = Data::new().with_questions(3);
    let located = data
        .resolve()
        .locate(&builtin_task("gsm8k").unwrap())
        .unwrap();
    assert_eq!(located.files.len(), 1);
    assert!(!located.files[0].pinned);
    assert_eq!(located.digests()[0].path, "gsm8k/questions.jsonl");
    assert_eq!(located.digests()[0].sha256.len(), 64);
}

#[test]
fn what_is_missing_or_doubtful_is_named() {
    let data = Data::new();
    let error = questions(&data).unwrap_err().to_string();
    assert!(
        error.contains("test.jsonl") && error.contains("--data"),
        "{error}"
    );
    data.write("gsm8k/a.jsonl", "");
    data.write("gsm8k/b.jsonl", "");
    let error = questions(&data).unwrap_err().to_string();
    assert!(error.contains("a.jsonl, b.jsonl"), "{error}");
    let error = DataDir::resolve(Some(Path::new("/no/such/folder"))).unwrap_err();
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
}

#[test]
fn parts_of_one_file_are_read_in_order() {
    let data = Data::new();
    for part in [1, 0] {
        let path = data
            .dir
            .path()
            .join(format!("wikipedia/train-0000{part}-of-00002.parquet"));
        let title = format!("Title {part}");
        write_parquet(
            &path,
            ["title", "text"],
            &[[&title, "Text."], ["", "Text."]][..1],
        );
    }
    let titles: Vec<String> = articles(&data)
        .unwrap()
        .into_iter()
        .map(|a| a.title)
        .collect();
    assert_eq!(titles, ["Title 0", "Title 1"]);
}

#[test]
fn questions_from_a_columnar_file_equal_those_from_lines() {
    let rows = [["How many?", "Two.\n#### 2"], ["How much?", "#### 1,234"]];
    let columnar = Data::new();
    write_parquet(
        &columnar
            .dir
            .path()
            .join("gsm8k/main/test-00000-of-00001.parquet"),
        ["question", "answer"],
        &rows,
    );
    let lines = Data::new();
    let text: Vec<String> = rows
        .iter()
        .map(|[question, answer]| json!({"question": question, "answer": answer}).to_string())
        .collect();
    lines.write("gsm8k/mine.jsonl", text.join("\n"));
    let read = questions(&columnar).unwrap();
    assert_eq!(read, questions(&lines).unwrap());
    assert_eq!(read[1].gold.as_str(), "1234");
}

#[test]
fn a_columnar_file_without_the_columns_is_refused() {
    let data = Data::new();
    let path = data.dir.path().join("gsm8k/test-00000-of-00001.parquet");
    write_parquet(&path, ["title", "text"], &[["a", "b"]]);
    let error = questions(&data).unwrap_err().to_string();
    assert!(error.contains("columns id, title, text"), "{error}");
    assert!(error.contains("question and answer"), "{error}");
}

#[test]
fn damaged_columnar_files_are_errors() {
    let data = Data::new();
    let path = data.dir.path().join("wikipedia/a.parquet");
    write_parquet(
        &path,
        ["title", "text"],
        &[["Title", "Text."], ["Other", "Text."]],
    );
    let whole = fs::read(&path).unwrap();
    assert_eq!(articles(&data).unwrap().len(), 2);
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(articles(&data).is_err(), "cut to {length} bytes");
    }
    // Altered bytes may still be a file, but never end the program.
    for at in 0..whole.len() {
        let mut altered = whole.clone();
        altered[at] ^= 0x55;
        fs::write(&path, &altered).unwrap();
        let _ = articles(&data);
    }
}

#[test]
fn wrong_question_lines_are_named() {
    let good = "{\"question\": \"How many?\", \"answer\": \"#### 2\", \"id\": 0}";
    let cases: [(&[u8], &str); 8] = [
        (b"{\"question\": \"a\"", "EOF"),
        (b"{\"question\": \"a\"}", "missing field `answer`"),
        (
            b"{\"question\": \" \", \"answer\": \"#### 2\"}",
            "an empty question",
        ),
        (b"{\"question\": \"a\", \"answer\": \"2\"}", "without ####"),
        (
            b"{\"question\": \"a\", \"answer\": \"#### two\"}",
            "`two` after ####",
        ),
        (
            b"{\"question\": \"How many?\", \"answer\": \"#### 2\"}",
            "again, first at",
        ),
        (
            b"{\"question\": \"b\", \"answer\": \"#### 2\", \"id\": 0}",
            "id 0 again, first at",
        ),
        (b"{\"question\": \"\xff\"}", "no UTF-8"),
    ];
    for (line, expected) in cases {
        let data = Data::new();
        data.write(
            "gsm8k/q.jsonl",
            [good.as_bytes(), b"\n\n", line, b"\n"].concat(),
        );
        let error = questions(&data).unwrap_err().to_string();
        assert!(error.contains("q.jsonl:3: found "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn wikitext_titles_begin_articles_and_headings_do_not() {
    let data = Data::new();
    let text = " \n = First town = \n \n The first town is old . \n = = History = = \n \n It was \
                built of stone k \n = 1 henry and capacitance C = \n 1 farad . \n \n \
                = Second @-@ town = \n \n Second @-@ town , too , is old . \n";
    data.write("wikipedia/mine.raw", text);
    let articles = articles(&data).unwrap();
    let titles: Vec<&str> = articles.iter().map(|a| a.title.as_str()).collect();
    assert_eq!(titles, ["First town", "Second @-@ town"]);
    assert!(
        articles[0]
            .text
            .starts_with(" = First town = \n \n The first town")
    );
    assert!(articles[0].text.ends_with("capacitance C = \n 1 farad ."));
    assert!(
        articles[1]
            .text
            .ends_with(" Second @-@ town , too , is old .")
    );
}

#[test]
fn wrong_articles_are_named() {
    let twice = " = Town = \n A Town . \n = Town = \n A Town . \n";
    let cases: [(&str, &[u8], &str); 5] = [
        (
            "a.raw",
            b"Text.\n = Town = \n",
            "a.raw:1: found text before the first title",
        ),
        (
            "a.raw",
            twice.as_bytes(),
            "a.raw:3: found title `Town` again",
        ),
        (
            "a.raw",
            b" = Town = \n A \xff Town .",
            "a.raw:2: found bytes that are no UTF-8",
        ),
        (
            "a.jsonl",
            br#"{"title": "", "text": "b"}"#,
            "a.jsonl:1: found an empty title or text",
        ),
        ("a.jsonl", b"[]", "a.jsonl:1: found invalid"),
    ];
    for (name, bytes, expected) in cases {
        let data = Data::new();
        data.write(&format!("wikipedia/{name}"), bytes);
        let error = articles(&data).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn questions_with_converted_line_ends_are_the_known_ones() {
    let Some(real) = real_data() else { return };
    let text = fs::read_to_string(real.path().join("gsm8k/test.jsonl")).unwrap();
    let data = Data::new();
    data.write(
        "gsm8k/test.jsonl",
        text.replace("\r\n", "\n").replace('\n', "\r\n"),
    );
    let located = data
        .resolve()
        .locate(&builtin_task("gsm8k").unwrap())
        .unwrap();
    assert!(located.files[0].pinned);
    assert!(located.digests()[0].sha256.starts_with("3730d312"));
    assert_eq!(questions(&data).unwrap().len(), 1319);
}
