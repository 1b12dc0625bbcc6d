//! What other programs and shells take from the binary: reports for CI, badges, baselines,
//! explanations, completions, manual pages, quiet and colour.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::synthetic::Synthetic;
use crate::tiny::Tiny;

/// `kvassay ARGS` in the world's folder, without anything that CI or a terminal may have set.
fn run(world: &Synthetic, args: &[&str]) -> Output {
    run_with(world, args, &[])
}

fn run_with(world: &Synthetic, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = assert_cmd::Command::cargo_bin("kvassay").unwrap();
    for name in [
        "GITHUB_STEP_SUMMARY",
        "NO_COLOR",
        "CLICOLOR_FORCE",
        "CLICOLOR",
    ] {
        command.env_remove(name);
    }
    command.current_dir(world.root()).args(args);
    command.envs(variables.iter().copied());
    command.output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn tree(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Writes a certificate after `change`.
fn changed(world: &Synthetic, recipe: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let mut certificate = tree(&world.kept(recipe));
    change(&mut certificate);
    fs::write(world.root().join(name), certificate.to_string()).unwrap();
}

/// Whoever stops reading, as `head` does, changes neither what is written elsewhere nor the exit code.
#[test]
fn a_reader_may_leave() {
    let world = Synthetic::new();
    for format in ["text", "json"] {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("kvassay"));
        command.current_dir(world.root());
        command.args(["certify", "run", "--require", "both", "--format", format]);
        command.args(["--write", "junit=report.xml"]);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), text(&output.stderr)), (1, String::new()));
        let written = fs::read_to_string(world.root().join("report.xml")).unwrap();
        assert!(written.ends_with("</testsuites>\n"), "{written}");
    }
}

#[test]
fn each_format_on_stdout_and_in_files() {
    let world = Synthetic::new();
    let args = ["certify", "run", "--require", "both", "--format"];
    for (format, start) in [
        ("text", "protocol "),
        ("json", "{\n"),
        (
            "junit",
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites ",
        ),
        ("markdown", "## kvassay: ❌ "),
        ("github", "::error title=kvassay "),
    ] {
        let file = format!("{format}=report");
        let output = run(&world, &[&args[..], &[format, "--write", &file]].concat());
        assert_eq!(code(&output), 1, "{format}: {}", text(&output.stderr));
        let shown = text(&output.stdout);
        assert!(shown.starts_with(start), "{format}: {shown}");
        assert_eq!(
            fs::read(world.root().join("report")).unwrap(),
            output.stdout
        );
        assert!(output.stderr.is_empty());
    }
    let written = fs::read_dir(world.root()).unwrap().count();
    assert_eq!(written, 3, "the run, what is kept, and the report");
}

#[test]
fn junit_fails_exactly_where_the_exit_code_does() {
    let world = Synthetic::new();
    for (require, exit) in [(None, 0), (Some("preservation"), 1), (Some("both"), 1)] {
        let mut args = vec!["certify", "run", "--format", "junit"];
        args.extend(require.iter().flat_map(|value| ["--require", value]));
        let output = run(&world, &args);
        assert_eq!(code(&output), exit);
        let report = text(&output.stdout);
        let failures = report.matches("<failure ").count();
        assert_eq!(failures > 0, exit == 1, "{report}");
        assert!(!report.contains("<error "), "{report}");
    }
}

#[test]
fn github_gets_annotations_and_a_step_summary_that_others_write_to_as_well() {
    let world = Synthetic::new();
    let path = world.root().join("summary.md");
    let variables = [("GITHUB_STEP_SUMMARY", path.to_str().unwrap())];
    fs::write(&path, "before\n").unwrap();
    let args = [
        "certify",
        "run",
        "--require",
        "preservation",
        "--format",
        "github",
    ];
    let output = run_with(&world, &args, &variables);
    assert_eq!(code(&output), 1);
    let commands = text(&output.stdout);
    assert!(
        commands.lines().all(|line| line.starts_with("::")),
        "{commands}"
    );
    assert!(
        commands.contains(" SF%3A preservation::preservation not established"),
        "{commands}"
    );
    let summary = fs::read_to_string(&path).unwrap();
    assert!(summary.starts_with("before\n## kvassay: ❌"), "{summary}");
    // A file that is nearly full takes what fits.
    fs::write(&path, "x".repeat((1 << 20) - 400)).unwrap();
    assert_eq!(code(&run_with(&world, &args, &variables)), 1);
    let size = fs::metadata(&path).unwrap().len();
    assert!((1 << 20) - 400 < size && size <= 1 << 20, "{size}");
    // Other formats leave it alone, and a place that cannot be written is a system failure.
    fs::remove_file(&path).unwrap();
    run_with(&world, &["certify", "run", "--format", "text"], &variables);
    assert!(!path.exists());
    fs::create_dir(&path).unwrap();
    let output = run_with(&world, &args, &variables);
    assert_eq!(code(&output), 4);
    assert!(text(&output.stderr).contains("cannot append to GITHUB_STEP_SUMMARY"));
}

#[test]
fn a_command_that_fails_is_annotated() {
    let world = Synthetic::new();
    let output = run(&world, &["certify", "absent", "--format", "github"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stdout).starts_with("::error title=kvassay::"));
}

#[test]
fn files_that_cannot_be_written_are_refused_before_anything_runs() {
    let world = Synthetic::new();
    for target in ["junit=absent/report.xml", "junit=run"] {
        let output = run(&world, &["certify", "run", "--write", target]);
        assert_eq!(code(&output), 2);
        assert!(text(&output.stderr).contains("expected a file in a folder that exists"));
    }
    let output = run(&world, &["certify", "run", "--write", "xml=report"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("expected FORMAT=FILE with one of: text, json"));
}

#[test]
fn what_an_earlier_run_left_does_not_survive_a_failure() {
    let world = Synthetic::new();
    let report = world.root().join("report.xml");
    let summary = world.root().join("summary.json");
    let targets = [
        "--write",
        "junit=report.xml",
        "--write",
        "json=summary.json",
    ];
    let certify = |run_directory: &str, more: &[&str]| {
        let args = [&["certify", run_directory][..], &targets, more].concat();
        code(&run(&world, &args))
    };
    assert_eq!(certify("run", &[]), 0);
    assert!(report.exists() && summary.exists());
    assert_eq!(certify("absent", &[]), 2);
    assert!(!report.exists() && !summary.exists());
    // Nothing is removed that a refusal could have kept, and no file that is read.
    for target in [
        "junit=absent/report.xml",
        "json=kept/AD.json",
        "json=run/run.json",
        "text=kept/SF.json",
    ] {
        fs::write(&report, "protocol before, worker cpu").unwrap();
        let more = ["--baseline", "kept/AD.json", "--write", target];
        assert_eq!(certify("run", &more), 2, "{target}");
        assert_eq!(fs::read(&report).unwrap(), b"protocol before, worker cpu");
    }
    assert!(world.kept("AD").exists() && world.kept("SF").exists());
    assert!(world.root().join("run/run.json").exists());
    #[cfg(unix)]
    {
        // A link stays, the report that it leads to does not, and neither does a pipe go.
        fs::rename(&report, world.root().join("earlier.xml")).unwrap();
        std::os::unix::fs::symlink("earlier.xml", &report).unwrap();
        assert_eq!(certify("absent", &[]), 2);
        assert!(report.is_symlink() && !report.exists());
        fs::remove_file(&report).unwrap();
        let _both = pipe(&report);
        assert_eq!(certify("absent", &[]), 2);
        assert!(is_pipe(&report));
    }
}

/// Makes a pipe, and both of its ends: nobody waits for the other one.
#[cfg(unix)]
fn pipe(path: &Path) -> fs::File {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
    let both = fs::OpenOptions::new().read(true).write(true).open(path);
    both.unwrap()
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::symlink_metadata(path).unwrap().file_type().is_fifo()
}

/// Every option that names a file: links are followed, pipes are written to, and both stay.
#[cfg(unix)]
#[test]
fn links_and_pipes_stay_and_take_what_is_written() {
    use std::io::Read;
    use std::os::unix::fs::symlink;
    let world = Synthetic::new();
    let at = |name: &str| world.root().join(name);
    fs::create_dir(at("far")).unwrap();
    let commands: [(&str, &[&str], &str); 5] = [
        ("out.xml", &["certify", "run", "--write", "junit="], "<?xml"),
        ("out.svg", &["badge", "kept/AD.json", "--out", ""], "<svg "),
        (
            "out.html",
            &["report", "run", "--out", ""],
            "<!doctype html>",
        ),
        (
            "out.json",
            &["verify", "kept/AD.json", "--run", "run", "--statement", ""],
            "{\n",
        ),
        (
            "out.toml",
            &["protocol", "new", "--name", "mine", "--force", "--out", ""],
            "# The digest of this protocol",
        ),
    ];
    for (name, words, start) in commands {
        let written_to = |path: &str| {
            let mut args = words.to_vec();
            let last = format!("{}{path}", args.pop().unwrap());
            args.push(&last);
            let output = run(&world, &args);
            assert_eq!(code(&output), 0, "{args:?}: {}", text(&output.stderr));
        };
        // First where the link leads nowhere yet, then where it leads to what was written.
        symlink(format!("far/{name}"), at(name)).unwrap();
        for _ in 0..2 {
            written_to(name);
            assert!(at(name).is_symlink(), "{name}");
            let found = fs::read_to_string(at("far").join(name)).unwrap();
            assert!(found.starts_with(start), "{name}: {found}");
            assert!(
                !fs::symlink_metadata(at("far").join(name))
                    .unwrap()
                    .is_symlink()
            );
        }
        let place = format!("far/pipe-{name}");
        let both = pipe(&at(&place));
        let mut end = fs::File::open(at(&place)).unwrap();
        let reader = std::thread::spawn(move || {
            let mut found = String::new();
            end.read_to_string(&mut found).unwrap();
            found
        });
        written_to(&place);
        drop(both);
        assert!(reader.join().unwrap().starts_with(start), "{name}");
        assert!(is_pipe(&at(&place)), "{name}");
    }
    // Nothing is left beside what was asked for.
    assert_eq!(fs::read_dir(at("far")).unwrap().count(), 2 * commands.len());
}

#[test]
fn folders_and_files_of_other_programs_are_not_replaced() {
    let world = Synthetic::new();
    let at = |name: &str| world.root().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("table.csv"), "case,correct\n").unwrap();
    fs::write(
        at("drawing.svg"),
        "<svg xmlns=\"x\"><title>mine</title></svg>",
    )
    .unwrap();
    fs::write(at("index.html"), "<!doctype html>\n<title>mine</title>\n").unwrap();
    fs::write(
        at("other.json"),
        "{\"_type\": \"https://in-toto.io/Statement/v1\"}",
    )
    .unwrap();
    let commands: [(&[&str], &str); 4] = [
        (&["certify", "run", "--write", "text="], "report"),
        (&["badge", "kept/AD.json", "--out", ""], "badge"),
        (&["report", "run", "--out", ""], "page"),
        (
            &["verify", "kept/AD.json", "--run", "run", "--statement", ""],
            "Statement",
        ),
    ];
    for (words, kind) in commands {
        let to = |path: &str| {
            let mut args = words.to_vec();
            let last = format!("{}{path}", args.pop().unwrap());
            args.push(&last);
            let output = run(&world, &args);
            (code(&output), text(&output.stderr))
        };
        for name in [
            "table.csv",
            "drawing.svg",
            "index.html",
            "other.json",
            "kept/SF.json",
        ] {
            let before = fs::read(at(name)).unwrap();
            let (exit, message) = to(name);
            assert_eq!(exit, 2, "{kind} {name}");
            let expected = format!(
                "{name}: found a file that is no {kind} of this tool, expected none, or an earlier {kind}"
            );
            assert!(message.contains(&expected), "{message}");
            assert_eq!(fs::read(at(name)).unwrap(), before, "{kind} {name}");
        }
        let (exit, message) = to("kept/AD.json");
        assert_eq!(exit, 2, "{message}");
        for (name, found) in [
            ("folder", "a folder"),
            ("absent/file", "no folder to hold it"),
        ] {
            let (exit, message) = to(name);
            assert_eq!(exit, 2, "{message}");
            let expected =
                format!("{name}: found {found}, expected a file in a folder that exists");
            assert!(message.contains(&expected), "{message}");
        }
        // An empty file, and what the command itself wrote.
        fs::write(at("own"), "").unwrap();
        for _ in 0..2 {
            let (exit, message) = to("own");
            assert_eq!(exit, 0, "{kind}: {message}");
            assert_ne!(fs::read(at("own")).unwrap(), b"");
        }
        fs::remove_file(at("own")).unwrap();
    }
    let (first, second) = ("kept/AD.json", "run/certificates/AD.json");
    assert_eq!(fs::read(at(first)).unwrap(), fs::read(at(second)).unwrap());
}

#[test]
fn an_earlier_statement_does_not_survive_a_verification_that_fails() {
    let world = Synthetic::new();
    let path = world.root().join("st.json");
    let verify = |certificate: &str| {
        let args = [
            "verify",
            certificate,
            "--run",
            "run",
            "--statement",
            "st.json",
        ];
        code(&run(&world, &args))
    };
    assert_eq!(verify("kept/AD.json"), 0);
    assert!(path.exists());
    changed(&world, "AD", "forged.json", |certificate| {
        certificate["objectives"]["preservation"]["rules"][0]["bound"] = json!(0.001);
    });
    for (certificate, exit) in [("forged.json", 5), ("absent.json", 2)] {
        assert_eq!(verify("kept/AD.json"), 0);
        assert_eq!(verify(certificate), exit);
        assert!(!path.exists(), "{certificate}");
    }
    // The file that is read is not removed, whatever it is.
    assert_eq!(verify("kept/AD.json"), 0);
    assert_eq!(verify("./st.json"), 2);
    assert!(path.exists());
    fs::write(&path, "{}").unwrap();
    assert_eq!(verify("forged.json"), 2);
    assert_eq!(fs::read(&path).unwrap(), b"{}");
}

#[test]
fn two_outputs_to_one_file_are_refused() {
    let world = Synthetic::new();
    let earlier = "protocol before, worker cpu";
    let refused = |first: &str, second: &str| {
        let args = ["certify", "run", "--write", first, "--write", second];
        let output = run(&world, &args);
        assert_eq!(code(&output), 2, "{first} {second}");
        let message = text(&output.stderr);
        assert!(message.contains("expected a file for each"), "{message}");
    };
    refused("junit=a.xml", "json=a.xml");
    fs::write(world.root().join("a.xml"), earlier).unwrap();
    for second in [
        "json=a.xml",
        "json=./a.xml",
        "json=kept/../a.xml",
        "junit=a.xml",
    ] {
        refused("junit=a.xml", second);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink("../a.xml", world.root().join("kept/link")).unwrap();
        symlink("b.xml", world.root().join("new")).unwrap();
        symlink("kept", world.root().join("folder")).unwrap();
        refused("junit=a.xml", "json=kept/link");
        refused("json=new", "junit=b.xml");
        refused("json=folder/c", "junit=kept/c");
    }
    let kept = fs::read_to_string(world.root().join("a.xml")).unwrap();
    assert_eq!(kept, earlier, "refused before anything is removed");
    let args = [
        "certify",
        "run",
        "--write",
        "junit=a.xml",
        "--write",
        "json=b.json",
    ];
    assert_eq!(code(&run(&world, &args)), 0);
}

#[test]
fn what_a_baseline_held_must_hold() {
    // Then both recipes answered as native did; now `SF` has lost almost everything.
    let then = Synthetic::with(&["native"], &|_, _, case| case + 1 != 6);
    let now = Synthetic::new();
    for recipe in ["AD", "SF"] {
        let verdict = &tree(&then.kept(recipe))["objectives"]["preservation"]["verdict"];
        assert_eq!(verdict, "pass");
        fs::copy(then.kept(recipe), now.root().join(format!("{recipe}.json"))).unwrap();
    }
    let held = run(&now, &["certify", "run", "--baseline", "AD.json"]);
    assert_eq!(code(&held), 0, "{}", text(&held.stderr));
    assert!(text(&held.stdout).contains("AD against baseline AD.json: preservation still holds"));
    let args = [
        "certify",
        "run",
        "--baseline",
        "AD.json",
        "--baseline",
        "SF.json",
        "--format",
    ];
    let lost = run(&now, &[&args[..], &["json"]].concat());
    assert_eq!(code(&lost), 1);
    let document: Value = serde_json::from_slice(&lost.stdout).unwrap();
    assert_eq!(document["exit"], 1);
    let objective = &document["baselines"][1]["objectives"][0];
    assert_eq!(objective["lost"], true);
    assert_eq!(objective["now"], "not_established");
    let rule = &objective["rules"][0];
    assert!(rule["bound_now"].as_f64().unwrap() > rule["bound_then"].as_f64().unwrap());
    let junit = text(&run(&now, &[&args[..], &["junit"]].concat()).stdout);
    assert!(
        junit.contains("baseline.SF\" name=\"preservation as in SF.json\""),
        "{junit}"
    );
    // What was not held then is not required now.
    fs::copy(now.kept("SF"), now.root().join("weak.json")).unwrap();
    let weak = run(&now, &["certify", "run", "--baseline", "weak.json"]);
    assert_eq!(code(&weak), 0);
    assert!(text(&weak.stdout).contains("it held nothing, so nothing can be lost"));
}

#[test]
fn baselines_that_say_nothing_about_the_run_are_refused() {
    let world = Synthetic::new();
    let refused = |name: &str, exit: i32, expected: &str| {
        let output = run(&world, &["certify", "run", "--baseline", name]);
        let message = text(&output.stderr);
        assert_eq!(code(&output), exit, "{message}");
        assert!(
            message.contains(name) && message.contains(expected),
            "{message}"
        );
        assert!(output.stdout.is_empty());
    };
    refused("absent.json", 2, "found nothing there");
    refused("run/certificates/AD.json", 2, "kept elsewhere");
    changed(&world, "AD", "forged.json", |certificate| {
        certificate["objectives"]["preservation"]["rules"][0]["bound"] = json!(0.001);
    });
    refused(
        "forged.json",
        5,
        "contradicts itself: objectives.preservation.rules[0].bound",
    );
    changed(&world, "AD", "rules.json", |certificate| {
        certificate["protocol"]["sha256"] = json!("e".repeat(64));
    });
    refused("rules.json", 2, "bounds under other rules do not compare");
    changed(&world, "AD", "shape.json", |certificate| {
        certificate["model"]["geometry"]["vocab_size"] = json!(7);
    });
    refused("shape.json", 2, "found a certificate of model");
    fs::write(world.root().join("no.json"), "{}").unwrap();
    refused("no.json", 2, "expected kvassay.certificate/1");
}

#[test]
fn qualify_is_quiet_and_reads_baselines_before_it_runs() {
    let tiny = Tiny::new();
    let qualify = |args: &[&str]| tiny.command("qualify").args(args).output().unwrap();
    let output = qualify(&["SD", "--out", "one", "--quiet", "--format", "junit"]);
    assert_eq!(code(&output), 1, "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("type=\"control_too_weak\""));
    assert!(tiny.path("one/certificates/SD.svg").exists());
    let stored = fs::read_to_string(tiny.path("one/certificates/SD.json")).unwrap();
    fs::write(tiny.path("kept.json"), &stored).unwrap();
    let again = [
        "--out",
        "one",
        "--resume",
        "SD",
        "--write",
        "text=summary.txt",
    ];
    let output = qualify(&[&again[..], &["--baseline", "kept.json"]].concat());
    assert_eq!(code(&output), 1);
    assert!(!output.stderr.is_empty(), "progress in lines");
    let summary = fs::read_to_string(tiny.path("summary.txt")).unwrap();
    assert!(
        summary.contains("it held nothing, so nothing can be lost"),
        "{summary}"
    );
    // Another recipe than those of the run, and one that contradicts itself.
    for (recipe, change, exit) in [("AF", "no such text", 2), ("SD", "control_too_weak", 5)] {
        fs::write(tiny.path("kept.json"), stored.replace(change, "y")).unwrap();
        let output = qualify(&[recipe, "--out", "two", "--baseline", "kept.json"]);
        assert_eq!(code(&output), exit, "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains("kept.json"),
            "{}",
            text(&output.stderr)
        );
        assert!(!tiny.path("two").exists(), "nothing was started");
    }
}

#[test]
fn other_weights_are_what_a_baseline_watches() {
    let world = Synthetic::new();
    let weights = kvassay::schema::sha256_hex(format!("{}\n", "e".repeat(64)).as_bytes());
    changed(&world, "AD", "earlier.json", |certificate| {
        certificate["model"]["files"][0]["sha256"] = json!("e".repeat(64));
        certificate["model"]["weights_sha256"] = json!(weights);
    });
    let output = run(&world, &["certify", "run", "--baseline", "earlier.json"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let shown = text(&output.stdout).replace("\n  ", " ");
    assert!(
        shown.contains(&format!(
            "not the same as then: weights: {} then",
            &weights[..12]
        )),
        "{shown}"
    );
}

#[test]
fn a_verification_for_ci() {
    let world = Synthetic::new();
    changed(&world, "AD", "forged.json", |certificate| {
        certificate["objectives"]["preservation"]["rules"][0]["bound"] = json!(0.001);
    });
    let verify = |file: &str, format: &str| run(&world, &["verify", file, "--format", format]);
    for (format, sound, forged) in [
        (
            "junit",
            "failures=\"0\"",
            "<failure message=\"MISMATCH: forged.json",
        ),
        (
            "markdown",
            "## kvassay verify: ✅ consistent",
            "## kvassay verify: ❌ MISMATCH",
        ),
        (
            "github",
            "",
            "::error title=kvassay verify::MISMATCH: forged.json",
        ),
    ] {
        let output = verify("kept/AD.json", format);
        assert_eq!(code(&output), 0);
        assert!(
            text(&output.stdout).contains(sound),
            "{}",
            text(&output.stdout)
        );
        let output = verify("forged.json", format);
        assert_eq!(code(&output), 5);
        let shown = text(&output.stdout);
        assert!(shown.contains(forged), "{shown}");
        let field = shown.contains("objectives.preservation.rules");
        assert!(field, "the field is named: {shown}");
    }
    assert!(text(&verify("kept/AD.json", "github").stdout).is_empty());
}

#[test]
fn badges_stand_beside_certificates_and_are_drawn_from_them() {
    let world = Synthetic::new();
    assert_eq!(code(&run(&world, &["certify", "run"])), 0);
    let badge = |recipe: &str| {
        fs::read_to_string(world.run().join(format!("certificates/{recipe}.svg"))).unwrap()
    };
    let (green, verdict) = ("fill=\"#2e7d32\"", ">not established</text>");
    assert!(badge("AD").contains(green) && badge("AD").contains("AD preservation</text>"));
    assert!(
        !badge("SF").contains(green) && badge("SF").contains(verdict),
        "{}",
        badge("SF")
    );
    let output = run(
        &world,
        &["badge", "kept/AD.json", "--objective", "aggregate"],
    );
    assert_eq!(code(&output), 0);
    assert!(text(&output.stdout).contains("AD aggregate</text>"));
    let args = ["badge", "kept/AD.json", "--out", "AD.svg"];
    assert_eq!(code(&run(&world, &args)), 0);
    assert_eq!(
        fs::read_to_string(world.root().join("AD.svg")).unwrap(),
        badge("AD")
    );
    changed(&world, "SF", "forged.json", |certificate| {
        certificate["objectives"]["preservation"]["verdict"] = json!("pass");
    });
    let output = run(&world, &["badge", "forged.json", "--out", "forged.svg"]);
    assert_eq!(code(&output), 5);
    assert!(!world.root().join("forged.svg").exists());

    // Where another process has the run, everything stays.
    let drawn = badge("AD");
    let held = fs::File::create(world.run().join("run.lock")).unwrap();
    held.lock().unwrap();
    let output = run(&world, &["certify", "run"]);
    assert_eq!(code(&output), 2, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("held by another process"));
    assert_eq!(badge("AD"), drawn);
}

#[test]
fn explanations_of_a_pass_and_of_what_is_not_established() {
    let world = Synthetic::new();
    let output = run(&world, &["explain", "kept/AD.json", "kept/SF.json"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    insta::assert_snapshot!("explain_text", text(&output.stdout));
    let output = run(&world, &["explain", "kept/SF.json", "--format", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "kvassay.explain/1");
    let sections = document["explanations"][0]["sections"].as_array().unwrap();
    assert!(
        sections
            .iter()
            .any(|section| section["title"] == "What would be needed")
    );
    changed(&world, "AD", "forged.json", |certificate| {
        certificate["objectives"]["preservation"]["rules"][0]["lost"] = json!(0);
    });
    let output = run(&world, &["explain", "forged.json"]);
    assert_eq!(code(&output), 5);
    assert!(output.stdout.is_empty());
}

/// The recipe of another harness may be no recipe of kvassay, only a name.
#[test]
fn an_imported_certificate_with_a_name_of_its_own_is_consistent_and_explained() {
    let world = Synthetic::new();
    let outcomes: String = (0..50)
        .map(|case| format!("{case},1,{}\n", u8::from(case > 5)))
        .collect();
    let table = format!("case,native,candidate\n{outcomes}");
    fs::write(world.root().join("table.csv"), table).unwrap();
    let args = ["import", "csv", "--pairs", "table.csv", "--out", "imported"];
    let recipe = ["--recipe", "vllm fp8", "--format", "markdown"];
    let output = run(&world, &[&args[..], &recipe].concat());
    assert!(
        text(&output.stdout).contains("| `vllm fp8` | descriptive |"),
        "{}",
        text(&output.stdout)
    );
    let path = "imported/certificates/vllm fp8.json";
    let output = run(&world, &["explain", path]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("(recipe_undeclared)"),
        "{}",
        text(&output.stdout)
    );
    assert_eq!(code(&run(&world, &["verify", path])), 0);
    // A certificate of a run has a recipe, and one that claims a cache does as well.
    let certificate = tree(&world.root().join(path));
    for (pointer, value) in [
        ("/worker/kind", json!("cpu")),
        ("/memory/bytes_per_token", json!(9)),
    ] {
        let mut forged = certificate.clone();
        *forged.pointer_mut(pointer).unwrap() = value;
        fs::write(world.root().join("forged.json"), forged.to_string()).unwrap();
        assert_eq!(
            code(&run(&world, &["verify", "forged.json"])),
            5,
            "{pointer}"
        );
    }
}

#[test]
fn colour_only_where_it_is_asked_for_and_never_in_files() {
    let world = Synthetic::new();
    let args = ["certify", "run", "--write", "text=plain.txt"];
    let has_colour = |more: &[&str], variables: &[(&str, &str)]| {
        let output = run_with(&world, &[&args[..], more].concat(), variables);
        assert_eq!(code(&output), 0);
        let file = fs::read_to_string(world.root().join("plain.txt")).unwrap();
        assert!(!file.contains('\x1b'), "{file:?}");
        let shown = text(&output.stdout);
        let plain = ["\x1b[32m", "\x1b[33m", "\x1b[0m"]
            .iter()
            .fold(shown.clone(), |text, code| text.replace(code, ""));
        assert_eq!(plain, file);
        shown != plain
    };
    assert!(!has_colour(&[], &[]));
    assert!(has_colour(&["--color", "always"], &[]));
    assert!(has_colour(&["--color", "always"], &[("NO_COLOR", "1")]));
    assert!(has_colour(&[], &[("CLICOLOR_FORCE", "1")]));
    assert!(!has_colour(
        &["--color", "never"],
        &[("CLICOLOR_FORCE", "1")]
    ));
    assert!(!has_colour(
        &[],
        &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]
    ));
    let error = |color: &str| text(&run(&world, &["certify", "absent", "--color", color]).stderr);
    assert!(error("always").starts_with("kvassay: \x1b[1;31merror\x1b[0m: "));
    assert!(error("never").starts_with("kvassay: error: "));
    let usage = |color: &str| text(&run(&world, &["certify", "--color", color]).stderr);
    assert!(usage("always").contains('\x1b') && !usage("never").contains('\x1b'));
}

#[test]
fn completions_of_every_shell_know_commands_and_options() {
    let world = Synthetic::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = run(&world, &["completions", shell]);
        assert_eq!(code(&output), 0, "{shell}");
        let script = text(&output.stdout);
        for word in ["qualify", "baseline", "explain", "junit", "preservation"] {
            // Elvish and PowerShell complete names of options, not their values.
            let values = ["junit", "preservation"].contains(&word);
            let known = script.contains(word);
            let none = values && ["powershell", "elvish"].contains(&shell);
            assert!(known || none, "{shell}: {word}");
        }
    }
    assert_eq!(code(&run(&world, &["completions", "tcsh"])), 2);
}

#[test]
fn manual_pages_of_the_program_and_of_every_command() {
    let world = Synthetic::new();
    let page = |args: &[&str]| text(&run(&world, args).stdout);
    let program = page(&["man"]);
    assert!(
        program.contains(".TH kvassay 1") || program.contains(".TH KVASSAY 1"),
        "{program}"
    );
    assert!(program.contains("kvassay\\-qualify(1)"), "{program}");
    let command = page(&["man", "protocol", "new"]);
    assert!(command.contains("kvassay\\-protocol\\-new"), "{command}");
    assert_eq!(code(&run(&world, &["man", "absent"])), 2);
    let output = run(&world, &["man", "--out", "pages"]);
    assert_eq!(code(&output), 0);
    let written = |name: &str| fs::read_to_string(world.root().join("pages").join(name)).unwrap();
    assert_eq!(written("kvassay.1"), program);
    assert_eq!(written("kvassay-protocol-new.1"), command);
    assert!(written("kvassay-qualify.1").contains("\\-\\-baseline"));
    fs::write(world.root().join("file"), "").unwrap();
    for folder in ["file", "file/pages"] {
        let output = run(&world, &["man", "--out", folder]);
        assert_eq!(code(&output), 2);
        let message = text(&output.stderr);
        assert!(
            message.contains("found a file, expected a folder"),
            "{message}"
        );
    }
}

/// A pipe behind a descriptor has no path.
#[cfg(unix)]
#[test]
fn a_page_goes_into_a_pipe() {
    let world = Synthetic::new();
    for path in ["/dev/stdout", "/proc/self/fd/1"] {
        let output = run(&world, &["report", "run", "--out", path]);
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        assert!(text(&output.stdout).starts_with("<!doctype html>"));
    }
    let output = run(&world, &["report", "run", "--out", "-"]);
    assert_eq!(code(&output), 2);
    let message = text(&output.stderr);
    assert!(
        message.contains("--out -: found no path") && message.contains("/dev/stdout"),
        "{message}"
    );
    assert!(!world.root().join("-").exists());
}

#[test]
fn help_of_the_commands_here() {
    let world = Synthetic::new();
    for command in ["explain", "badge", "completions", "man"] {
        let output = run(&world, &[command, "--help"]);
        insta::assert_snapshot!(format!("help_{command}"), text(&output.stdout));
    }
}

/// Help is output like any other: that it could not be written is said.
#[test]
#[cfg(target_os = "linux")]
fn help_that_cannot_be_written_ends_with_4() {
    let world = Synthetic::new();
    for args in [&["--help"][..], &["--version"], &["qualify", "--help"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_kvassay"))
            .args(args)
            .current_dir(world.root())
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(code(&output), 4, "{args:?}");
        assert!(
            text(&output.stderr).contains("cannot write output"),
            "{}",
            text(&output.stderr)
        );
    }
}
