//! Run directories: created, refused, continued, replaced.

use super::super::record::samples;
use super::super::samples::{manifest, protocol};
use super::*;
use crate::schema::{CalibrationSource, ComponentTotals, LayerAbsmax, LayerEngagement};

fn sample() -> Manifest {
    manifest(protocol())
}

fn engagement(scale: f32) -> Engagement {
    let totals = ComponentTotals {
        bytes: 20,
        elements: 16,
        saturated: 0,
        changed: 5,
        scale_min: Some(scale),
        scale_max: Some(1.0),
    };
    Engagement {
        schema: ENGAGEMENT_SCHEMA.to_owned(),
        recipe: "k=native,v=e4m3:dynamic".to_owned(),
        probe_tokens: 1,
        layers: vec![LayerEngagement {
            layer: 0,
            k: ComponentTotals::default(),
            v: totals,
        }],
        totals: None,
        unit_scales: false,
        differs_from_native: true,
        queries: None,
    }
}

fn refusal(path: &Path) -> StoreError {
    RunDir::create(path, &sample()).unwrap_err()
}

#[test]
fn a_new_run_holds_its_manifest_before_anything_else() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("deep/run");
    let run = RunDir::create(&path, &sample()).unwrap();
    assert_eq!(run.manifest(), &sample());
    assert_eq!(RunDir::open(&path).unwrap().manifest(), &sample());
    let mut names: Vec<_> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, [MANIFEST_FILE, LOCK_FILE]);
    assert_eq!(fs::read(path.join(LOCK_FILE)).unwrap(), b"");
}

#[test]
fn another_run_and_foreign_files_are_refused_by_name_and_untouched() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("run");
    drop(RunDir::create(&run, &sample()).unwrap());
    let error = refusal(&run).to_string();
    assert!(
        error.contains("run.json: found a run (sample on sample-model)"),
        "{error}"
    );

    let foreign = root.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    for name in ["d", "b", "a", "c"] {
        fs::write(foreign.join(name), "x").unwrap();
    }
    let error = refusal(&foreign).to_string();
    assert!(
        error.ends_with("found a, b, c, …, expected an empty or new directory"),
        "{error}"
    );
    assert!(!foreign.join(LOCK_FILE).exists());

    let file = foreign.join("a");
    let error = refusal(&file);
    assert!(error.to_string().contains("foreign/a"), "{error}");
    assert!(!error.is_system());
}

#[test]
fn what_an_interrupted_create_leaves_behind_is_no_obstacle() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(LOCK_FILE), "").unwrap();
    fs::write(root.path().join(".run.json.tmp"), "{\"sche").unwrap();
    let error = RunDir::open(root.path()).unwrap_err();
    assert!(matches!(error, StoreError::NoRun { .. }), "{error}");
    RunDir::create(root.path(), &sample()).unwrap();
}

#[test]
fn what_a_crash_left_beside_a_file_goes_with_its_next_write() {
    let root = tempfile::tempdir().unwrap();
    let dir = RunDir::create(root.path(), &sample()).unwrap();
    let left = [
        "certificates/.AD.svg.tmp",
        "panels/.math.jsonl.tmp",
        "arms/AD/.math.jsonl.tmp",
    ]
    .map(|name| root.path().join(name));
    for path in &left {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "cut sho").unwrap();
    }
    dir.write_badge("AD", b"<svg/>").unwrap();
    dir.write_panel("math", b"{}").unwrap();
    dir.write_records("AD", "math", &[]).unwrap();
    for path in left {
        assert!(!path.exists(), "{}", path.display());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}

#[test]
fn a_resume_under_other_conditions_lists_every_difference() {
    let root = tempfile::tempdir().unwrap();
    drop(RunDir::create(root.path(), &sample()).unwrap());
    RunDir::resume(root.path(), &sample()).unwrap();
    let mut other = sample();
    other.protocol.rules.gross_loss.limit = 0.03;
    other.arms.pop();
    other.limit = Some(2);
    let error = RunDir::resume(root.path(), &other).unwrap_err().to_string();
    for part in [
        "protocol.rules.gross_loss.limit: found 0.02, expected 0.03",
        "arms[1]: found {\"arm\":\"AD\"",
        "expected nothing",
        "limit: found nothing, expected 2",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let stored = RunDir::open(root.path()).unwrap();
    assert_eq!(stored.manifest(), &sample());
}

#[test]
fn newer_documents_are_neither_read_nor_overwritten() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &sample()).unwrap();
    run.write_engagement("AD", &engagement(0.5)).unwrap();
    let path = root.path().join("arms/AD/engagement.json");
    let newer = r#"{"schema":"kvassay.engagement/2","other":1}"#;
    fs::write(&path, newer).unwrap();
    let errors = [
        run.engagement("AD").unwrap_err(),
        run.write_engagement("AD", &engagement(0.5)).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::Newer { .. }), "{error}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    drop(run);

    let newer = r#"{"schema":"kvassay.run/2"}"#;
    fs::write(root.path().join(MANIFEST_FILE), newer).unwrap();
    for error in [
        refusal(root.path()),
        RunDir::resume(root.path(), &sample()).unwrap_err(),
        RunDir::open(root.path()).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Newer { .. }), "{error}");
    }
    let stored = fs::read_to_string(root.path().join(MANIFEST_FILE)).unwrap();
    assert_eq!(stored, newer);
}

#[test]
fn a_damaged_manifest_is_named_with_its_line() {
    let root = tempfile::tempdir().unwrap();
    drop(RunDir::create(root.path(), &sample()).unwrap());
    let path = root.path().join(MANIFEST_FILE);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("\"family_alpha\": 0.05", "\"family_alpha\": \"x\""),
    )
    .unwrap();
    let error = RunDir::open(root.path()).unwrap_err().to_string();
    assert!(
        error.contains("run.json: invalid type") && error.contains("line"),
        "{error}"
    );
}

#[test]
fn one_writer_and_any_number_of_readers() {
    let root = tempfile::tempdir().unwrap();
    let writer = RunDir::create(root.path(), &sample()).unwrap();
    let reader = RunDir::open(root.path()).unwrap();
    assert_eq!(reader.records("AD", "math").unwrap(), []);
    for error in [
        RunDir::resume(root.path(), &sample()).unwrap_err(),
        reader.write_engagement("AD", &engagement(0.5)).unwrap_err(),
        reader.record_log("AD", "math", &[]).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Locked { .. }), "{error}");
        assert!(error.to_string().contains(LOCK_FILE), "{error}");
    }
    drop(writer);
    reader.write_engagement("AD", &engagement(0.5)).unwrap();
    let error = RunDir::resume(root.path(), &sample()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
}

#[test]
fn documents_read_back() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &sample()).unwrap();
    assert_eq!(run.engagement("AD").unwrap(), None);
    run.write_engagement("AD", &engagement(0.1)).unwrap();
    assert_eq!(run.engagement("AD").unwrap(), Some(engagement(0.1)));
    let calibration = Calibration {
        schema: CALIBRATION_SCHEMA.to_owned(),
        model: "m".to_owned(),
        weights_sha256: String::new(),
        documents_sha256: String::new(),
        documents: 1,
        tokens: 2,
        source: CalibrationSource::Measured,
        layers: vec![LayerAbsmax { k: 3.3, v: 0.1 }],
    };
    assert_eq!(run.calibration().unwrap(), None);
    run.write_calibration(&calibration).unwrap();
    assert_eq!(run.calibration().unwrap(), Some(calibration));
}

#[test]
fn records_are_stored_per_arm_and_panel_and_readers_skip_a_torn_line() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &sample()).unwrap();
    let plan = samples::plan(3);
    let records = samples::records(&plan);
    let mut log = run.record_log("AD", "math", &plan).unwrap();
    log.append(&records[..2]).unwrap();
    let path = root.path().join("arms/AD/math.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend_from_slice(b"{\"case\":");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(run.records("AD", "math").unwrap(), records[..2]);
    let stored = run.stored_records("AD", "math").unwrap().unwrap();
    assert_eq!(stored.file, run.file_digest("arms/AD/math.jsonl").unwrap());
    assert_eq!(run.stored_records("native", "math").unwrap(), None);
    assert_eq!(run.record_log("AD", "math", &plan).unwrap().done(), 2);
    assert!(fs::read(&path).unwrap().ends_with(b"}\n"));
}

#[test]
fn names_cannot_lead_out_of_the_run() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), &sample()).unwrap();
    for name in ["", "..", "a/b", "/a", "a\\b", ".hidden"] {
        assert!(
            matches!(run.records(name, "math"), Err(StoreError::Name { .. })),
            "{name}"
        );
        assert!(run.record_log("AD", name, &[]).is_err(), "{name}");
        assert!(run.engagement(name).is_err(), "{name}");
    }
    for path in ["", "../run.json", "/etc/hostname", "arms/../../x"] {
        assert!(
            matches!(run.file_digest(path), Err(StoreError::Name { .. })),
            "{path}"
        );
    }
    run.record_log("k=native,v=e4m3:dynamic", "math", &[])
        .unwrap();
}
