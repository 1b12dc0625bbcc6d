//! Time and memory of a run over HTTP against a server that answers every question after 50 ms:
//! 1,319 questions, 64 at a time, records written and synced on the way.
//!
//! `cargo run --release --example server_throughput [QUESTIONS [MILLISECONDS [CONCURRENCY]]]`

#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../tests/support/server.rs"]
mod server;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kvassay::engine::BatchLayout;
use kvassay::engine::http::{HttpEngine, HttpSettings, RetryPolicy, ServerSpec, ServerUrl};
use kvassay::model::{DemoModel, ModelSource};
use kvassay::panel::runner::{self, Event, RunInput};
use kvassay::panel::{BuiltPanel, BuiltPanels, Outcome, Panel};
use kvassay::recipe::Recipe;
use kvassay::schema::{
    CaseTask, ChatMessage, Extent, PANEL_SCHEMA, PanelCase, PanelHeader, PanelPlan, PromptTemplate,
    builtin_protocol,
};
use kvassay::store::RunDir;
use serde_json::json;
use server::{Reply, Server};

fn questions(count: u32) -> Panel {
    let case = |index: u32| PanelCase {
        case: format!("question-{index:04}"),
        messages: vec![ChatMessage {
            role: "user".to_owned(),
            content: format!("What is {index} plus one? Think about it for a while."),
        }],
        prompt_ids: (0..100).map(|at| (at * 7 + index) % 200).collect(),
        task: CaseTask::Math {
            gold: (index + 1).to_string(),
            max_new_tokens: 512,
        },
    };
    let header = PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: "math".to_owned(),
        task: "demo-math/1".to_owned(),
        tokenizer_sha256: "0".repeat(64),
        sources: Vec::new(),
        parser: "gsm8k/1".to_owned(),
        cases: count,
    };
    Panel::new(header, (0..count).map(case).collect()).unwrap()
}

/// A server with answers as long as those to GSM8K.
fn answering(after: Duration) -> Server {
    let text = "First we count what there is, and then we add what comes. ".repeat(20) + "#### 5";
    let reply = json!({"model": "m", "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 250}});
    Server::start(move |request| match request.path.as_str() {
        "/v1/models" => Reply::Json(200, json!({"data": [{"id": "m"}]})),
        "/v1/chat/completions" => Reply::After(after, reply.clone()),
        _ => Reply::Json(404, json!({})),
    })
}

/// Largest resident memory so far, in MiB.
fn peak() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u32>().unwrap());
    let mut next = |default| numbers.next().unwrap_or(default);
    let (count, latency, concurrency) = (next(1319), next(50), next(64));
    let after = Duration::from_millis(u64::from(latency));
    let (candidate, control) = (answering(after), answering(after));
    let mut protocol = builtin_protocol("demo").unwrap();
    protocol.panels = vec![PanelPlan::Math {
        task: "demo-math".to_owned(),
        cases: count,
        max_new_tokens: 512,
    }];
    let panels = BuiltPanels {
        panels: vec![BuiltPanel {
            name: "math".to_owned(),
            outcome: Outcome::Built(questions(count)),
        }],
        calibration: None,
        probe: vec![1],
    };
    let text = ModelSource::Demo(DemoModel::Tolerant).open_text().unwrap();
    let spec = |name: &str, arms: &[&str], server: &Server| ServerSpec {
        name: name.to_owned(),
        arms: arms.iter().map(|arm| (*arm).to_owned()).collect(),
        url: ServerUrl::parse(&server.url()).unwrap(),
    };
    let specs = vec![
        spec("candidate", &["SF"], &candidate),
        spec("native", &["native", "native-aa"], &control),
    ];
    let settings = HttpSettings {
        template: PromptTemplate::Server,
        concurrency: concurrency as usize,
        seed: 0,
        timeout: Duration::from_secs(60),
        retry: RetryPolicy::default(),
        key: None,
        served_model: None,
    };
    let identity = text.identity();
    let tokenizer = Arc::new(text.tokenizer);
    let mut engine = HttpEngine::connect(specs, settings, identity, &tokenizer).unwrap();
    engine
        .probe(&runner::probe_material(&panels, &tokenizer))
        .unwrap();
    let recipe = Recipe::parse("SF").unwrap();
    let digest = protocol.sha256().unwrap();
    let manifest = runner::server_manifest(
        &protocol,
        digest,
        &panels,
        &recipe,
        Extent::default(),
        &engine,
    )
    .unwrap();
    let root = tempfile::tempdir().unwrap();
    let dir = RunDir::create(root.path(), &manifest).unwrap();
    runner::store_panels(&dir, &panels).unwrap();
    let input = RunInput {
        dir: &dir,
        panels: &panels,
        layout: BatchLayout {
            slots: 1,
            prefill_chunk: 1,
        },
        verify: false,
        stop: &AtomicBool::new(false),
    };
    let ideal = after.as_secs_f64() * f64::from(count) / f64::from(concurrency);
    println!("{count} questions, {latency} ms each, {concurrency} at a time: ideal {ideal:.3} s");
    let mut began = Instant::now();
    let mut half = None;
    runner::run(&input, &mut engine, &mut |event: &Event<'_>| match event {
        Event::PanelStarted { .. } => (began, half) = (Instant::now(), None),
        Event::CaseFinished { arm, panel, .. }
            if half.is_none() && began.elapsed().as_secs_f64() > ideal / 2.0 =>
        {
            let stored = dir.records(arm, panel).map_or(0, |records| records.len());
            half = Some(stored);
        }
        Event::PanelFinished { arm, .. } => {
            let took = began.elapsed().as_secs_f64();
            println!(
                "{arm:10} {took:.3} s, {:.3} x ideal; {} records stored after half the time; \
                     peak memory {:.0} MiB",
                took / ideal,
                half.unwrap_or(0),
                peak()
            );
        }
        _ => {}
    })
    .unwrap();
}
