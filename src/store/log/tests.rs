//! Record files cut at every byte, on disks that fill at every byte.

use std::sync::{Arc, Mutex};

use super::super::file::SystemDisk;
use super::super::file::fake::SmallDisk;
use super::super::record::samples::{plan, records};
use super::*;

fn whole_file(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        push_line(Path::new("x"), record, &mut bytes).unwrap();
    }
    bytes
}

/// Opens what is there and appends what is left, one record at a time.
fn resume(path: &Path, plan: &[CaseKey], records: &[Record]) -> usize {
    let mut log = RecordLog::open(&SystemDisk, path, plan).unwrap();
    let done = log.done();
    for record in &records[done..] {
        log.append(std::slice::from_ref(record)).unwrap();
    }
    assert_eq!(log.done(), plan.len());
    done
}

#[test]
fn cut_at_every_byte_it_resumes_to_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("math.jsonl");
    let plan = plan(4);
    let records = records(&plan);
    let whole = whole_file(&records);
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let done = resume(&path, &plan, &records);
        let lines = whole[..cut].iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(done, lines, "cut at {cut}");
        assert_eq!(fs::read(&path).unwrap(), whole, "cut at {cut}");
    }
}

#[test]
fn a_disk_that_fills_at_every_byte_leaves_a_resumable_file() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("math.jsonl");
    let plan = plan(3);
    let records = records(&plan);
    let whole = whole_file(&records);
    for at_once in [1, 9, usize::MAX] {
        for capacity in 0..whole.len() {
            let disk = SmallDisk {
                bytes: Arc::new(Mutex::new(Vec::new())),
                capacity,
                at_once,
                ..SmallDisk::default()
            };
            let mut log = RecordLog::on(&path, Box::new(disk.clone()), &plan, 0);
            let error = log
                .append(&records[..1])
                .and_then(|()| log.append(&records[1..]))
                .unwrap_err();
            assert!(error.is_system(), "{error}");
            let again = log.append(&records[..1]).unwrap_err();
            assert!(matches!(again, StoreError::FailedBefore { .. }), "{again}");
            fs::write(&path, &*disk.bytes.lock().unwrap()).unwrap();
            resume(&path, &plan, &records);
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
    }
}

#[test]
fn short_and_interrupted_writes_are_completed() {
    let plan = plan(3);
    let records = records(&plan);
    for at_once in 1..40 {
        let disk = SmallDisk {
            capacity: usize::MAX / 2,
            at_once,
            signals: true,
            ..SmallDisk::default()
        };
        let mut log = RecordLog::on(Path::new("x"), Box::new(disk.clone()), &plan, 0);
        log.append(&records).unwrap();
        assert_eq!(log.done(), 3);
        assert_eq!(*disk.bytes.lock().unwrap(), whole_file(&records));
    }
}

#[test]
fn records_count_only_when_synced() {
    let plan = plan(2);
    let disk = SmallDisk {
        capacity: 1 << 20,
        at_once: 1 << 20,
        sync_fails: true,
        ..SmallDisk::default()
    };
    let mut log = RecordLog::on(Path::new("x"), Box::new(disk), &plan, 0);
    assert!(log.append(&records(&plan)).is_err());
    assert_eq!(log.done(), 0);
}

#[test]
fn records_out_of_plan_are_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("math.jsonl");
    let plan = plan(3);
    let records = records(&plan);
    let mut log = RecordLog::open(&SystemDisk, &path, &plan).unwrap();
    log.append(&records[..1]).unwrap();
    let before = fs::read(&path).unwrap();
    let mut unfinished = records[1].clone();
    unfinished.nll_sum = None;
    let bad = [
        (
            vec![records[2].clone()],
            ":2: found case case-2, expected case case-1",
        ),
        (
            vec![records[1].clone(), records[1].clone()],
            ":3: found a second record",
        ),
        (
            records.clone(),
            ":2: found case case-0, expected case case-1",
        ),
        (
            vec![records[1].clone(), records[2].clone(), records[0].clone()],
            ":4: found case case-0, expected the end after 3 cases",
        ),
        (vec![unfinished], ":2: found no outcome"),
    ];
    for (batch, message) in bad {
        let error = log.append(&batch).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
    log.append(&records[1..]).unwrap();
    log.append(&[]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), whole_file(&records));
}

#[test]
fn a_record_that_was_doubled_stays_and_its_case_is_not_asked_again() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("math.jsonl");
    let plan = plan(3);
    let records = records(&plan);
    for doubled in [[0, 0, 1, 2], [0, 1, 0, 2], [0, 1, 1, 2]] {
        let all = doubled.map(|at: usize| records[at].clone());
        fs::write(&path, whole_file(&all[..3])).unwrap();
        assert_eq!(resume(&path, &plan, &records), 2);
        assert_eq!(fs::read(&path).unwrap(), whole_file(&all), "{doubled:?}");
    }
    let again = [&records[..], &records[..1]].concat();
    fs::write(&path, whole_file(&again)).unwrap();
    assert_eq!(resume(&path, &plan, &records), 3);
    assert_eq!(fs::read(&path).unwrap(), whole_file(&again));
}

#[test]
fn a_damaged_file_is_refused_by_line_and_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("math.jsonl");
    let plan = plan(3);
    let records = records(&plan);
    let whole = whole_file(&records);
    let mut swapped = whole_file(&[records[1].clone(), records[0].clone()]);
    swapped.extend_from_slice(b"{\"torn");
    let doubled = [&records[0], &records[0], &records[2]].map(Record::clone);
    let doubled = whole_file(&doubled);
    let mut zeros = whole.clone();
    zeros[2..9].fill(0);
    for (bytes, message) in [
        (
            swapped,
            "math.jsonl:1: found case case-1, expected case case-0",
        ),
        (
            doubled,
            "math.jsonl:3: found case case-2, expected case case-1",
        ),
        (zeros, "math.jsonl:1: found no record"),
    ] {
        fs::write(&path, &bytes).unwrap();
        let error = RecordLog::open(&SystemDisk, &path, &plan).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert!(!error.is_system());
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}
