//! Edits of JSON trees, each named.

use serde_json::{Value, json};

/// A spoiled tree and what was done to it.
pub struct Edit {
    /// Where, e.g. `objectives/aggregate/rules/0/bound`, and what.
    pub name: String,
    /// Where, as a JSON pointer.
    pub pointer: String,
    /// The whole tree after the edit.
    pub tree: Value,
}

/// Every single edit of `tree`: each leaf changed in several ways, each list shortened, lengthened
/// and reordered, each field removed, and a field added to each object.
pub fn edits(tree: &Value) -> Vec<Edit> {
    edits_with(tree, &other_values)
}

/// Every leaf replaced by each value that `values` gives for it, and lists and fields edited as in
/// [`edits`].
pub fn edits_with(tree: &Value, values: &dyn Fn(&Value) -> Vec<Value>) -> Vec<Edit> {
    let mut list = Vec::new();
    walk(tree, "", values, &mut |pointer, what, value| {
        let mut edited = tree.clone();
        *edited.pointer_mut(pointer).unwrap() = value;
        list.push(Edit {
            name: format!("{pointer}: {what}"),
            pointer: pointer.to_owned(),
            tree: edited,
        });
    });
    list
}

type Emit<'a> = dyn FnMut(&str, String, Value) + 'a;

fn walk(value: &Value, pointer: &str, values: &dyn Fn(&Value) -> Vec<Value>, emit: &mut Emit<'_>) {
    match value {
        Value::Object(fields) => {
            for key in fields.keys() {
                let mut fewer = fields.clone();
                fewer.remove(key);
                emit(pointer, format!("without {key}"), Value::Object(fewer));
            }
            let mut more = fields.clone();
            more.insert("colour".to_owned(), json!(1));
            emit(pointer, "with colour".to_owned(), Value::Object(more));
            for (key, field) in fields {
                let key = key.replace('~', "~0").replace('/', "~1");
                walk(field, &format!("{pointer}/{key}"), values, emit);
            }
        }
        Value::Array(items) => {
            for at in 0..items.len() {
                let mut fewer = items.clone();
                let item = fewer.remove(at);
                emit(
                    pointer,
                    format!("without [{at}]"),
                    Value::Array(fewer.clone()),
                );
                fewer.push(item.clone());
                if fewer != *items {
                    emit(pointer, format!("[{at}] last"), Value::Array(fewer));
                }
                let mut more = items.clone();
                more.push(item);
                emit(pointer, format!("[{at}] twice"), Value::Array(more));
            }
            for (at, item) in items.iter().enumerate() {
                walk(item, &format!("{pointer}/{at}"), values, emit);
            }
        }
        leaf => {
            for other in values(leaf) {
                emit(pointer, format!("{leaf} -> {other}"), other);
            }
        }
    }
}

/// Other values for a leaf: near ones, far ones, and of another kind.
fn other_values(leaf: &Value) -> Vec<Value> {
    match leaf {
        Value::Null => vec![json!("x"), json!(1), json!(true), json!({}), json!([])],
        Value::Bool(value) => vec![json!(!value), Value::Null, json!(0)],
        Value::String(text) => other_texts(text),
        Value::Number(number) => match number.as_u64() {
            Some(value) => vec![
                json!(value + 1),
                json!(value.wrapping_sub(1)),
                json!(2 * value + 7),
                Value::Null,
            ],
            None => other_floats(number.as_f64().unwrap()),
        },
        Value::Array(_) | Value::Object(_) => Vec::new(),
    }
}

fn other_texts(text: &str) -> Vec<Value> {
    let mut list = vec![json!(format!("{text}x")), json!(""), Value::Null, json!(1)];
    if let Some(first) = text.chars().next() {
        let other = if first == 'b' { 'c' } else { 'b' };
        list.push(json!(format!("{other}{}", &text[first.len_utf8()..])));
    }
    list.retain(|other| other != text);
    list
}

fn other_floats(value: f64) -> Vec<Value> {
    let mut list = vec![value * 1.0001, value + 1e-6, -value, 0.0, 1.0];
    // 0 and -0 are one number, however written.
    list.retain(|other| *other != value);
    let mut list: Vec<Value> = list.into_iter().map(Value::from).collect();
    list.push(Value::Null);
    list
}

/// Values that no certificate has.
pub fn absurd_values(leaf: &Value) -> Vec<Value> {
    match leaf {
        Value::Number(number) if number.is_f64() => {
            [f64::MAX, f64::MIN_POSITIVE, -1e300, 1e-300, 2.0]
                .map(Value::from)
                .to_vec()
        }
        Value::Number(_) => [u64::MAX, u64::from(u32::MAX), 1 << 53, 0]
            .map(Value::from)
            .to_vec(),
        Value::String(_) => vec![
            json!("\u{0}"),
            json!("../../etc/passwd"),
            json!("x".repeat(5000)),
            json!("k=e4m3:fixed,v=e4m3:fixed,skip-layers=0"),
        ],
        _ => Vec::new(),
    }
}
