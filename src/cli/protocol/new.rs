//! `kvassay protocol new`: declares a protocol before a run.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args as ClapArgs, ValueEnum};

use crate::model;
use crate::panel::builtin_task;
use crate::recipe::Recipe;
use crate::schema::{
    CalibrationPlan, ObjectiveName, PanelPlan, Protocol, ProtocolCandidate, ProtocolModel,
    ResourceLimits, RuleName, locked_digest,
};
use crate::store::write_atomic;

use super::super::output::Format;
use super::super::prepare::model_failure;
use super::super::qualify::Require;
use super::super::size::Size;
use super::super::values::parse_score_alpha;
use super::super::{Failure, qualify};
use super::spec::{GivenPanel, parse_calibration, parse_divisor, parse_panel, parse_rule_limit};
use super::{Kind, load, show};

/// Arguments of `kvassay protocol new`. What is not given is as in the protocol of `--from`; divisors
/// are where the declared family is as large as that one's.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// File to write; its ending says how.
    #[arg(long, value_name = "FILE.toml|.json")]
    out: PathBuf,
    /// Name of the protocol; no built-in one has it.
    #[arg(long)]
    name: String,
    /// Protocol that everything is taken from which is not given here. Where the family grows or
    /// shrinks, its divisors become the least that are allowed.
    #[arg(long, value_name = "NAME|PATH", default_value = "reference")]
    from: String,
    /// A model, by name, with the SHA-256 of its weights, or with a path whose weights are digested
    /// now. Given several times for several models.
    #[arg(long, value_name = "NAME[=SHA256|=PATH]")]
    model: Vec<String>,
    /// A candidate: a recipe, or a name of its own and a recipe. Given several times.
    #[arg(long, value_name = "RECIPE|NAME=RECIPE")]
    candidate: Vec<String>,
    /// A native control. Given several times for several controls.
    #[arg(long, value_name = "NAME")]
    control: Vec<String>,
    /// Objectives of the family.
    #[arg(long, value_enum)]
    objective: Option<Require>,
    /// The objective that a recipe named on the command line of a run must hold.
    #[arg(long, value_enum)]
    required: Option<Required>,
    /// A contrast between two candidates. None are taken over where candidates are given.
    #[arg(long, value_name = "FIRST-SECOND")]
    contrast: Vec<String>,
    /// A panel: math:cases=N, nll:length=N,documents=N or retrieval:length=N,cases=N. Besides
    /// these, task=NAME (that of the first panel of its kind in the other protocol, else gsm8k,
    /// wikipedia-nll or needle), max_new_tokens=N (512 for math, 16 for retrieval) and targets=N (128).
    #[arg(long, value_name = "KIND:KEY=N,…", value_parser = parse_panel)]
    panel: Vec<GivenPanel>,
    /// Documents per length, lengths in tokens, and forced tokens, e.g. 16:1k,8k:128; or checkpoint,
    /// for fixed scales that the checkpoint brings along.
    #[arg(long, value_name = "DOCS:LEN,LEN:FORCED|checkpoint", value_parser = parse_calibration)]
    calibration: Option<CalibrationPlan>,
    /// Probability of any false certificate of an objective in the declared family.
    #[arg(long, value_name = "ALPHA", value_parser = parse_score_alpha)]
    family_alpha: Option<f64>,
    /// Divisor of the family alpha for gross_loss, net_change, nll or retrieval.
    #[arg(long, value_name = "RULE=N", value_parser = parse_divisor)]
    divisor: Vec<(RuleName, u32)>,
    /// Limit of a rule, e.g. gross_loss=2% or net_change=-1pp.
    #[arg(long, value_name = "RULE=VALUE", value_parser = parse_rule_limit)]
    limit: Vec<(RuleName, f64)>,
    /// Most device memory in use while an arm runs, other processes included, e.g. 76GiB.
    #[arg(long, value_name = "SIZE")]
    peak_memory: Option<Size>,
    /// Longest time between two samples of the memory in use, in milliseconds.
    #[arg(long, value_name = "MS")]
    sample_gap: Option<u64>,
    /// Seed of panels and of the bootstrap.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// One sentence for people.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Replace the file where there is one.
    #[arg(long)]
    force: bool,
    /// Form of what is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Values of `--required`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Required {
    /// gross_loss, nll and retrieval.
    Preservation,
    /// net_change, nll and retrieval.
    Aggregate,
}

/// Writes the protocol and prints what it says and what its sizes can pass.
///
/// # Errors
/// Exit 2 for what cannot be declared, and for a file that is there already; 3 for a model that
/// cannot be run; 4 where the file cannot be written.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let kind = check_target(args).map_err(Failure::input)?;
    let from = load(&args.from).map_err(Failure::input)?;
    let models = args
        .model
        .iter()
        .map(|text| declared_model(text))
        .collect::<Result<Vec<_>, _>>()?;
    let protocol = declare(args, from, models).map_err(Failure::input)?;
    let text = file_text(&protocol, kind).map_err(Failure::input)?;
    write_atomic(&args.out, text.as_bytes()).map_err(|error| qualify::failure(error.into()))?;
    let file = args.out.display().to_string();
    show::show(&protocol, Some(file), args.format, out)
}

/// Refuses names and files that are taken.
fn check_target(args: &Args) -> anyhow::Result<Kind> {
    if locked_digest(&args.name).is_some() {
        bail!(
            "--name {}: found the name of a built-in protocol, expected another",
            args.name
        );
    }
    let kind = Kind::of(&args.out).context("--out")?;
    if args.out.is_dir() {
        bail!(
            "--out {}: found a folder, expected a file or none",
            args.out.display()
        );
    }
    if args.out.exists() && !args.force {
        bail!(
            "--out {}: found a file there, expected none, or --force",
            args.out.display()
        );
    }
    Ok(kind)
}

fn file_text(protocol: &Protocol, kind: Kind) -> anyhow::Result<String> {
    Ok(match kind {
        Kind::Toml => protocol.to_toml()?,
        Kind::Json => serde_json::to_string_pretty(protocol)? + "\n",
    })
}

/// `NAME`, `NAME=SHA256` or `NAME=PATH`.
fn declared_model(text: &str) -> Result<ProtocolModel, Failure> {
    let Some((name, weights)) = text.split_once('=') else {
        return named_model(text).map_err(Failure::input);
    };
    let is_digest = weights.len() == 64 && weights.bytes().all(|byte| byte.is_ascii_hexdigit());
    let sha256 = if is_digest {
        weights.to_ascii_lowercase()
    } else {
        digest_of(name, Path::new(weights))?
    };
    Ok(ProtocolModel {
        name: name.to_owned(),
        sha256: Some(sha256),
    })
}

fn named_model(name: &str) -> anyhow::Result<ProtocolModel> {
    let path = Path::new(name);
    if path.components().count() > 1 && path.exists() {
        bail!("--model {name}: found a path, expected a name, or NAME={name}");
    }
    Ok(ProtocolModel {
        name: name.to_owned(),
        sha256: None,
    })
}

/// Digest of the weights in `path`. A run knows a model by the name of its folder or file.
fn digest_of(name: &str, path: &Path) -> Result<String, Failure> {
    let shown = path.display();
    if !path.exists() {
        return Err(Failure::input(anyhow!(
            "--model {name}={shown}: found nothing there, expected a model or a SHA-256 of 64 hexadecimal digits"
        )));
    }
    let identity = model::open(path).map_err(model_failure)?.identity();
    if name != "*" && identity.name != name {
        return Err(Failure::input(anyhow!(
            "--model {name}={shown}: found the name {name}, expected {}, by which a run will know this model",
            identity.name
        )));
    }
    Ok(identity.weights_sha256)
}

/// The protocol `from` with everything that was given.
fn declare(args: &Args, from: Protocol, models: Vec<ProtocolModel>) -> anyhow::Result<Protocol> {
    let source = from.name.clone();
    let before = RuleName::ALL.map(|rule| (from.divisor(rule), from.least_divisor(rule)));
    let mut protocol = from;
    protocol.name.clone_from(&args.name);
    replace(&mut protocol.models, models);
    replace(&mut protocol.controls, args.control.clone());
    let panels = args.panel.iter();
    let panels = panels.map(|panel| panel.beside(&protocol.panels)).collect();
    replace(&mut protocol.panels, panels);
    let keeps_panels = args.panel.is_empty() && args.calibration.is_none() && args.seed.is_none();
    if !keeps_panels {
        // Digests of other cases: panels and calibration share the texts, the seed draws from them.
        protocol.frozen_panels.clear();
    }
    if !args.candidate.is_empty() {
        protocol.candidates = candidates(&args.candidate)?;
        // Contrasts of other candidates mean nothing here.
        protocol.contrasts.clear();
    }
    replace(&mut protocol.contrasts, args.contrast.clone());
    if let Some(plan) = &args.calibration {
        protocol.calibration = plan.clone();
    }
    if let Some(seed) = args.seed {
        protocol.seed = seed;
        protocol.rules.nll.seed = seed;
    }
    set_resource_limits(args, &mut protocol);
    set_objectives(args, &mut protocol);
    let new_divisors = set_rules(args, &mut protocol, before)?;
    protocol.description = match &args.description {
        Some(text) => text.clone(),
        None => format!(
            "{}, {}; what was not declared anew is as in {source}{}",
            counted(protocol.models.len(), "model"),
            counted(protocol.candidates.len(), "recipe"),
            if new_divisors {
                ", but for divisors, which are the least of this family"
            } else {
                ""
            }
        ),
    };
    check_tasks(&protocol)?;
    protocol.validate()?;
    Ok(protocol)
}

/// `1 model`, `2 models`.
fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Replaces a list where another was given.
fn replace<T>(list: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *list = given;
    }
}

fn candidates(texts: &[String]) -> anyhow::Result<Vec<ProtocolCandidate>> {
    texts.iter().map(|text| candidate(text)).collect()
}

/// A recipe under its own name, or `NAME=RECIPE`.
fn candidate(text: &str) -> anyhow::Result<ProtocolCandidate> {
    let (name, spec) = match text.split_once('=') {
        // `k=` begins a recipe and is no name.
        Some((name, spec)) if name != "k" => (Some(name), spec),
        _ => (None, text),
    };
    let recipe = Recipe::parse(spec).with_context(|| format!("--candidate {text}"))?;
    Ok(ProtocolCandidate {
        name: name.map_or(recipe.name.clone(), str::to_owned),
        spec: recipe.spec(),
    })
}

fn set_objectives(args: &Args, protocol: &mut Protocol) {
    use ObjectiveName::{Aggregate, Preservation};
    protocol.objectives = match args.objective {
        None => protocol.objectives.clone(),
        Some(Require::Preservation) => vec![Preservation],
        Some(Require::Aggregate) => vec![Aggregate],
        Some(Require::Both) => vec![Preservation, Aggregate],
    };
    match (args.required, protocol.objectives.as_slice()) {
        (Some(Required::Preservation), _) => protocol.required = Preservation,
        (Some(Required::Aggregate), _) => protocol.required = Aggregate,
        // One objective leaves no choice.
        (None, [only]) => protocol.required = *only,
        (None, _) => {}
    }
}

fn set_resource_limits(args: &Args, protocol: &mut Protocol) {
    if args.peak_memory.is_none() && args.sample_gap.is_none() {
        return;
    }
    let limits = protocol.resource_limits.get_or_insert(ResourceLimits {
        peak_device_bytes: None,
        largest_sample_gap_ms: None,
    });
    let peak = args.peak_memory.map(|size| size.0);
    limits.peak_device_bytes = peak.or(limits.peak_device_bytes);
    limits.largest_sample_gap_ms = args.sample_gap.or(limits.largest_sample_gap_ms);
}

/// Family alpha, limits and divisors; `before` are the divisors of the protocol that others are taken
/// from, with the least that its family allowed. Returns whether a divisor changed that was not given.
fn set_rules(
    args: &Args,
    protocol: &mut Protocol,
    before: [(u32, u64); RuleName::ALL.len()],
) -> anyhow::Result<bool> {
    once("--divisor", args.divisor.iter().map(|(rule, _)| *rule))?;
    once("--limit", args.limit.iter().map(|(rule, _)| *rule))?;
    if let Some(alpha) = args.family_alpha {
        protocol.family_alpha = alpha;
    }
    let mut changed = false;
    for (rule, (divisor, least)) in RuleName::ALL.into_iter().zip(before) {
        let given = args.divisor.iter().find(|(given, _)| *given == rule);
        let divisor = match given {
            Some((_, divisor)) => *divisor,
            None if protocol.least_divisor(rule) == least => divisor,
            None => {
                let least = u32::try_from(protocol.least_divisor(rule))
                    .context("the declared family is too large for a divisor")?;
                changed |= least != divisor;
                least
            }
        };
        let limit = args.limit.iter().find(|(given, _)| *given == rule);
        let limit = limit.map_or(protocol.limit(rule), |(_, limit)| *limit);
        protocol.set_rule(rule, limit, divisor);
    }
    Ok(changed)
}

fn once(option: &str, rules: impl Iterator<Item = RuleName>) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    for rule in rules {
        if seen.contains(&rule) {
            bail!("{option}: found {} twice, expected it once", rule.name());
        }
        seen.push(rule);
    }
    Ok(())
}

/// Refuses tasks that no panel can be built of.
fn check_tasks(protocol: &Protocol) -> anyhow::Result<()> {
    for plan in &protocol.panels {
        let (kind, task) = match plan {
            PanelPlan::Math { task, .. } => ("math", task),
            PanelPlan::Nll { task, .. } => ("nll", task),
            PanelPlan::Retrieval { task, .. } => ("retrieval", task),
        };
        let found = builtin_task(task);
        if found.is_none_or(|task| task.kind.name() != kind) {
            bail!(
                "panel {}: found task `{task}`, expected a task of kind {kind} from `kvassay panel list`",
                plan.panel_name()
            );
        }
    }
    Ok(())
}
