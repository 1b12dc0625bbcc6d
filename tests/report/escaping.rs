//! Answers, names and reasons come from models, panels and servers: none of them may act on the
//! page.

use super::synthetic::Synthetic;
use super::{certify, change_document, change_records, page};

/// Texts that try to be more than text. Each keeps the last line of a math answer apart.
const HOSTILE: [&str; 6] = [
    "</pre></bdi><script>document.title = 'owned'</script><img src=x onerror=alert(1)>",
    "\u{0}\u{1}\u{7f}\u{85}\r and \u{202e}desrever\u{202c} \u{2066}\u{feff}",
    "</style></title><!-- ]]> {{ 7 * 7 }} {% raw %} &amp; &#x3c;b&gt;",
    "\"'><svg onload=alert(2)><a href='javascript:alert(3)'>x</a>",
    "\u{1f469}\u{200d}\u{1f4bb} \u{5e9}\u{5dc}\u{5d5}\u{5dd} naïve 日本語",
    "<meta http-equiv=refresh content='0;url=http://evil.test/'>",
];

pub fn hostile(synthetic: &Synthetic) {
    let arms = [
        ("native", "math", 0),
        ("native-aa", "math", 0),
        ("SF", "math", 1),
        ("SF", "retrieval-512", 2),
    ];
    for (arm, panel, offset) in arms {
        change_records(synthetic, arm, panel, |at, record| {
            let output = record["output"].as_str().unwrap().to_owned();
            let says = HOSTILE[(at + offset) % HOSTILE.len()];
            record["output"] = format!("{says}\n{output}").into();
        });
    }
    change_document(synthetic.run().join("run.json"), |manifest| {
        manifest["model"]["name"] = HOSTILE[0].into();
        manifest["worker"]["device"] = HOSTILE[1].into();
    });
    change_document(synthetic.run().join("calibration.json"), |calibration| {
        calibration["model"] = HOSTILE[0].into();
    });
    let done = certify(&synthetic.run());
    assert_eq!(done.code, 0, "{}", done.err);
}

#[test]
fn hostile_texts_stay_texts() {
    let synthetic = Synthetic::new();
    hostile(&synthetic);
    let page = page(&synthetic.run());
    for tag in [
        "<script",
        "<img",
        "<a href='",
        "<svg onload",
        "<meta http-equiv=refresh",
        "<!--",
    ] {
        assert!(!page.contains(tag), "{tag}");
    }
    assert_eq!(page.matches("</style>").count(), 1);
    assert_eq!(
        page.matches("</title>").count(),
        page.matches("<title>").count()
    );
    // What was said is still there to be read.
    assert!(page.contains("&lt;script&gt;document.title = &#x27;owned&#x27;"));
    assert!(page.contains("{{ 7 * 7 }} {% raw %} &amp;amp; &amp;#x3c;b&amp;gt;"));
    assert!(page.contains("\u{27e8}U+0000\u{27e9}\u{27e8}U+0001\u{27e9}\u{27e8}U+007F\u{27e9}"));
    assert!(page.contains("\u{27e8}U+202E\u{27e9}desrever\u{27e8}U+202C\u{27e9}"));
    for whole in [
        "\u{1f469}\u{200d}\u{1f4bb}",
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
        "naïve 日本語",
    ] {
        assert!(page.contains(whole), "{whole}");
    }
    let unseen = |char: char| char.is_control() && char != '\n' && char != '\t';
    let bidi = |char: char| matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!page.chars().any(|char| unseen(char) || bidi(char)));
}

#[test]
fn endless_answers_do_not_make_an_endless_page() {
    let synthetic = Synthetic::new();
    let before = page(&synthetic.run()).len();
    change_records(&synthetic, "SF", "math", |_, record| {
        let output = record["output"].as_str().unwrap().to_owned();
        record["output"] = format!("{}\n{output}", "<".repeat(100_000)).into();
    });
    assert_eq!(certify(&synthetic.run()).code, 0);
    let page = page(&synthetic.run());
    assert!(page.contains("characters left out"));
    assert!(
        page.len() < before + 60_000,
        "{} after {before}",
        page.len()
    );
}
