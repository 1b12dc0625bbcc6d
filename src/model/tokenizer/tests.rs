use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;

/// A word-level vocabulary with two special tokens and one that is only added.
fn definition() -> Value {
    let token = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special})
    };
    json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 2,
            "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [token(0, "<s>", true), token(1, "</s>", true), token(2, "<t>", false)],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false,
            "vocab": {"<s>": 0, "</s>": 1, "<t>": 2, "a": 3, "b": 4, "<": 5, ">": 6, "s": 7,
                "/": 8, "t": 9, "Ġ": 10},
            "merges": []},
    })
}

fn prepending(mut definition: Value) -> Value {
    definition["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}});
    definition
}

fn parts() -> TokenizerParts {
    TokenizerParts {
        path: "tokenizer.json".to_owned(),
        settings_path: "tokenizer_config.json".to_owned(),
        template_path: "chat_template.jinja".to_owned(),
        definition: definition(),
        chat_template: Some("{% for m in messages %}{{ m.content }}{% endfor %}".to_owned()),
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        add_bos: None,
        eos_ids: vec![3],
    }
}

fn message(content: &str) -> ChatMessage {
    ChatMessage {
        role: "user".to_owned(),
        content: content.to_owned(),
    }
}

fn refusal(parts: TokenizerParts) -> String {
    match Tokenizer::from_parts(parts) {
        Ok(_) => panic!("built"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn special_strings_are_text_unless_rendered() {
    let tokenizer = Tokenizer::from_parts(parts()).unwrap();
    assert_eq!(tokenizer.encode_text("a</s>").unwrap(), [3, 5, 8, 7, 6]);
    assert_eq!(tokenizer.encode_rendered("a</s>").unwrap(), [3, 1]);
    assert_eq!(tokenizer.encode_text("a<t>").unwrap(), [3, 2]);
    assert_eq!(
        tokenizer.encode_text("aaaa").unwrap().len(),
        4,
        "never truncated"
    );
    assert_eq!(tokenizer.decode(&[3, 1, 2, 4]), "a<t>b");
    assert_eq!(tokenizer.eos_ids(), [1, 3]);
    assert_eq!(tokenizer.largest_id(), 10);
}

/// Image tokens of a tokenizer that a text model shares with a multimodal one.
#[test]
fn added_tokens_behind_the_vocabulary_matter_where_a_text_has_them() {
    let mut definition = definition();
    let image = json!({"id": 11, "content": "<image>", "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false});
    definition["added_tokens"]
        .as_array_mut()
        .unwrap()
        .push(image);
    let parts = TokenizerParts {
        definition,
        ..parts()
    };
    let mut tokenizer = Tokenizer::from_parts(parts).unwrap();
    assert_eq!(tokenizer.encode_rendered("a<image>").unwrap(), [3, 11]);
    tokenizer.check_ids(11).unwrap();
    assert_eq!(tokenizer.encode_rendered("ab").unwrap(), [3, 4]);
    let message = tokenizer
        .encode_rendered("a<image>")
        .unwrap_err()
        .to_string();
    let expected = "tokenizer.json: id of token `<image>` in a text: found 11, expected ids below \
                    the vocabulary of 11";
    assert_eq!(message, expected);
    let message = tokenizer.check_ids(10).unwrap_err().to_string();
    assert!(message.contains("id of token `Ġ`: found 10"), "{message}");
}

#[test]
fn sequences_start_as_flag_or_post_processor_say() {
    let bos = |add_bos, definition| {
        let parts = TokenizerParts {
            add_bos,
            definition,
            ..parts()
        };
        Tokenizer::from_parts(parts).unwrap().bos()
    };
    assert_eq!(bos(None, definition()), None);
    assert_eq!(bos(None, prepending(definition())), Some(0));
    assert_eq!(bos(Some(false), prepending(definition())), None);
    assert_eq!(bos(Some(true), definition()), Some(0));
    let missing = TokenizerParts {
        add_bos: Some(true),
        bos_token: None,
        ..parts()
    };
    assert!(refusal(missing).contains("beginning-of-sequence token: found nothing"));
}

#[test]
fn a_chat_starts_with_exactly_one_bos() {
    let ids = |template: &str, add_bos| {
        let parts = TokenizerParts {
            chat_template: Some(template.to_owned()),
            add_bos: Some(add_bos),
            ..parts()
        };
        let tokenizer = Tokenizer::from_parts(parts).unwrap();
        tokenizer.chat_ids(&[message("a")], true).unwrap()
    };
    let (writes, does_not) = (
        "{{ bos_token }}{{ messages[0].content }}",
        "{{ messages[0].content }}",
    );
    assert_eq!(ids(writes, true), [0, 3]);
    assert_eq!(ids(does_not, true), [0, 3]);
    assert_eq!(ids(writes, false), [0, 3]);
    assert_eq!(ids(does_not, false), [3]);
}

#[test]
fn the_digest_covers_definition_template_and_tokens() {
    let digest = |parts| Tokenizer::from_parts(parts).unwrap().sha256().to_owned();
    let base = digest(parts());
    assert_eq!(base, digest(parts()));
    let mut other = definition();
    other["model"]["vocab"]["z"] = json!(11);
    for changed in [
        TokenizerParts {
            definition: other,
            ..parts()
        },
        TokenizerParts {
            chat_template: None,
            ..parts()
        },
        TokenizerParts {
            add_bos: Some(true),
            ..parts()
        },
        TokenizerParts {
            eos_ids: vec![],
            ..parts()
        },
    ] {
        assert_ne!(base, digest(changed));
    }
}

#[test]
fn what_is_missing_is_named() {
    let no_template = TokenizerParts {
        chat_template: None,
        ..parts()
    };
    let tokenizer = Tokenizer::from_parts(no_template).unwrap();
    assert!(!tokenizer.has_chat_template());
    let error = tokenizer.render_chat(&[message("a")], true).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("unsupported: chat messages: the model has no chat template")
    );
    let unknown = TokenizerParts {
        eos_token: Some("<e>".to_owned()),
        ..parts()
    };
    assert!(refusal(unknown).contains("tokenizer_config.json: field `eos_token`: found `<e>`"));
    let endless = TokenizerParts {
        eos_token: None,
        eos_ids: vec![],
        ..parts()
    };
    assert!(refusal(endless).contains("end-of-sequence tokens: found none"));
    let broken = TokenizerParts {
        definition: json!({"model": 1}),
        ..parts()
    };
    assert!(refusal(broken).starts_with("tokenizer.json: tokenizer: found"));
}

fn render(template: &str) -> Result<String, ModelError> {
    let parts = TokenizerParts {
        chat_template: Some(template.to_owned()),
        ..parts()
    };
    Tokenizer::from_parts(parts)?.render_chat(&[message("a")], true)
}

#[test]
fn templates_that_cannot_be_rendered_say_why() {
    for (template, part) in [
        (
            "{{ raise_exception('roles must alternate') }}",
            "roles must alternate",
        ),
        ("{% nonesuch %}", "unknown statement nonesuch"),
        ("\n\n{{ messages | nonesuch }}", "chat template, line 3"),
        ("{{ messages[0].content.nonesuch() }}", "nonesuch"),
        ("{{ missing.field }}", "undefined"),
        ("{{ strftime_now('%Q') }}", "unknown directive in `%Q`"),
        ("{{ strftime_now('%-Q') }}", "unknown directive in `%-Q`"),
    ] {
        let message = render(template).unwrap_err().to_string();
        assert!(message.contains(part), "{message} should say {part}");
    }
}

#[test]
fn the_date_is_fixed() {
    let text = render("{{ strftime_now('%d %b %Y, %A %Y-%m-%d %H:%M 100%%') }}").unwrap();
    assert_eq!(text, "26 Jul 2024, Friday 2024-07-26 00:00 100%");
    let text = render("{{ strftime_now('%-d.%-m. %e %F %I%p %j %c') }}").unwrap();
    assert_eq!(
        text,
        "26.7. 26 2024-07-26 12AM 208 Fri Jul 26 00:00:00 2024"
    );
}

/// Marks of training around the model's own words render as these, in a scope of their own.
#[test]
fn generation_tags_are_transparent() {
    let template = "{% set x = 1 %}{% for m in messages %}[\n  {%- generation %}\n  {{ m.content }}{% \
                    set x = 2 %}{{ x }}{%- endgeneration -%}\n ]{% endfor %}{{ x }}";
    assert_eq!(render(template).unwrap(), "[  a2]1");
}

/// What needs no template runs with one that cannot be read.
#[test]
fn a_broken_template_breaks_chats_alone() {
    let parts = TokenizerParts {
        chat_template: Some("{% nonesuch %}".to_owned()),
        ..parts()
    };
    let tokenizer = Tokenizer::from_parts(parts).unwrap();
    assert_eq!(tokenizer.encode_text("ab").unwrap(), [3, 4]);
    let message = tokenizer
        .chat_ids(&[message("a")], true)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("chat_template.jinja: chat template, line 1"),
        "{message}"
    );
}

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokenizer");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[derive(Deserialize)]
struct Rendered {
    name: String,
    source: String,
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    text: String,
}

#[test]
fn templates_render_like_the_library_they_are_written_for() {
    let golden: Vec<Rendered> = serde_json::from_str(&fixture("templates.json")).unwrap();
    assert_eq!(golden.len(), 60);
    for case in golden {
        let (bos, eos) = (Some("<b>".to_owned()), Some("<e>".to_owned()));
        let template = ChatTemplate::new("t", case.source, bos, eos).unwrap();
        let text = template.render(&case.messages, case.add_generation_prompt);
        let text = text.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(text, case.text, "{}", case.name);
    }
}

#[derive(Deserialize)]
struct Smollm2 {
    cases: Vec<Encoded>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    rendered: Vec<u32>,
    plain: Option<Vec<u32>>,
    decoded: String,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    text: String,
    ids: Vec<u32>,
}

#[test]
fn smollm2_tokenises_like_the_reference() {
    let Some(path) = std::env::var_os("KVASSAY_SMOLLM2").map(PathBuf::from) else {
        println!("skipped: KVASSAY_SMOLLM2 does not name the GGUF file");
        return;
    };
    let tokenizer = crate::model::open(&path).unwrap().tokenizer;
    let golden: Smollm2 = serde_json::from_str(&fixture("smollm2.json")).unwrap();
    assert!(golden.cases.len() > 190 && golden.chats.len() == 10);
    for case in &golden.cases {
        let rendered = tokenizer.encode_rendered(&case.text).unwrap();
        assert_eq!(rendered, case.rendered, "{:?}", case.text);
        let plain = tokenizer.encode_text(&case.text).unwrap();
        assert_eq!(
            plain,
            *case.plain.as_ref().unwrap_or(&rendered),
            "{:?}",
            case.text
        );
        assert_eq!(tokenizer.decode(&rendered), case.decoded, "{:?}", case.text);
    }
    for chat in &golden.chats {
        let prompt = chat.add_generation_prompt;
        assert_eq!(
            tokenizer.render_chat(&chat.messages, prompt).unwrap(),
            chat.text
        );
        assert_eq!(
            tokenizer.chat_ids(&chat.messages, prompt).unwrap(),
            chat.ids
        );
    }
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos_ids()),
        (None, [0, 2].as_slice())
    );
}
