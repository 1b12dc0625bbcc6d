//! Panels, calibration, divisors and limits as they are typed.

use std::mem::discriminant;

use crate::schema::{CalibrationPlan, CalibrationSource, PanelPlan, RuleName};

use super::super::values::parse_proportion;

/// What a panel is typed as, for messages.
const PANEL_FORM: &str = "math:cases=N, nll:length=N,documents=N or retrieval:length=N,cases=N";

/// `KEY=VALUE` settings of a panel, each given once and each taken.
struct Settings<'a> {
    kind: &'a str,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    fn parse(kind: &'a str, text: &'a str) -> Result<Self, String> {
        let mut left: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("found `{part}`, expected KEY=VALUE"));
            };
            if left.iter().any(|(other, _)| *other == key) {
                return Err(format!("found {key} twice, expected it once"));
            }
            left.push((key, value));
        }
        Ok(Settings { kind, left })
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.left.iter().position(|(other, _)| *other == key)?;
        Some(self.left.remove(at).1)
    }

    fn task(&mut self, usual: &str) -> String {
        self.take("task").unwrap_or(usual).to_owned()
    }

    fn needed(&mut self, key: &str) -> Result<u32, String> {
        match self.take(key) {
            Some(value) => number(key, value),
            None => {
                let rest = self
                    .left
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"));
                let rest: Vec<String> = rest.collect();
                let beside = match rest.is_empty() {
                    true => String::new(),
                    false => format!(" beside {}", rest.join(", ")),
                };
                Err(format!(
                    "found no {key}{beside}, expected one for a panel of kind {}",
                    self.kind
                ))
            }
        }
    }

    fn or(&mut self, key: &str, usual: u32) -> Result<u32, String> {
        self.take(key).map_or(Ok(usual), |value| number(key, value))
    }

    fn end(self, expected: &str) -> Result<(), String> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => Err(format!(
                "found {key}, expected for a panel of kind {}: {expected}",
                self.kind
            )),
        }
    }
}

/// A whole number, where a `k` behind it means 1,024 of them.
fn number(key: &str, text: &str) -> Result<u32, String> {
    let (digits, factor) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let value = if plain {
        digits.parse::<u32>().ok()
    } else {
        None
    };
    value
        .and_then(|value| value.checked_mul(factor))
        .ok_or_else(|| format!("{key}: found `{text}`, expected a whole number such as 64 or 8k"))
}

/// A panel as it is typed.
#[derive(Clone, Debug)]
pub(super) struct GivenPanel {
    /// With the usual task where none was named.
    plan: PanelPlan,
    names_task: bool,
}

impl GivenPanel {
    /// The panel beside those of the protocol that others are taken from: without a task of its own it
    /// has that of the first of its kind there.
    pub(super) fn beside(&self, others: &[PanelPlan]) -> PanelPlan {
        let mut plan = self.plan.clone();
        let is_alike = |other: &&PanelPlan| discriminant(*other) == discriminant(&plan);
        if let (false, Some(other)) = (self.names_task, others.iter().find(is_alike)) {
            let (PanelPlan::Math { task: usual, .. }
            | PanelPlan::Nll { task: usual, .. }
            | PanelPlan::Retrieval { task: usual, .. }) = other;
            let (PanelPlan::Math { task, .. }
            | PanelPlan::Nll { task, .. }
            | PanelPlan::Retrieval { task, .. }) = &mut plan;
            task.clone_from(usual);
        }
        plan
    }
}

/// `math:cases=1319`, `nll:length=8k,documents=64`, `retrieval:length=8k,cases=200`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_panel(text: &str) -> Result<GivenPanel, String> {
    let Some((kind, rest)) = text.split_once(':') else {
        return Err(format!("found `{text}`, expected {PANEL_FORM}"));
    };
    let mut settings = Settings::parse(kind, rest)?;
    let names_task = settings.left.iter().any(|(key, _)| *key == "task");
    let plan = match kind {
        "math" => {
            let plan = PanelPlan::Math {
                task: settings.task("gsm8k"),
                cases: settings.needed("cases")?,
                max_new_tokens: settings.or("max_new_tokens", 512)?,
            };
            settings.end("cases, max_new_tokens, task").map(|()| plan)
        }
        "nll" => {
            let plan = PanelPlan::Nll {
                task: settings.task("wikipedia-nll"),
                length: settings.needed("length")?,
                documents: settings.needed("documents")?,
                targets: settings.or("targets", 128)?,
            };
            settings
                .end("length, documents, targets, task")
                .map(|()| plan)
        }
        "retrieval" => {
            let plan = PanelPlan::Retrieval {
                task: settings.task("needle"),
                length: settings.needed("length")?,
                cases: settings.needed("cases")?,
                max_new_tokens: settings.or("max_new_tokens", 16)?,
            };
            settings
                .end("length, cases, max_new_tokens, task")
                .map(|()| plan)
        }
        other => Err(format!("found kind `{other}`, expected {PANEL_FORM}")),
    }?;
    Ok(GivenPanel { plan, names_task })
}

/// `DOCUMENTS:LENGTH,LENGTH:FORCED`, e.g. `16:1k,8k:128`, or `checkpoint`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_calibration(text: &str) -> Result<CalibrationPlan, String> {
    if text == CalibrationSource::Checkpoint.name() {
        return Ok(CalibrationPlan {
            documents: 0,
            lengths: Vec::new(),
            forced_tokens: 0,
            source: CalibrationSource::Checkpoint,
        });
    }
    let parts: Vec<&str> = text.split(':').collect();
    let [documents, lengths, forced] = parts[..] else {
        return Err(format!(
            "found `{text}`, expected DOCUMENTS:LENGTH,LENGTH:FORCED such as 16:1k,8k:128"
        ));
    };
    Ok(CalibrationPlan {
        documents: number("documents", documents)?,
        lengths: lengths
            .split(',')
            .map(|length| number("length", length))
            .collect::<Result<_, _>>()?,
        forced_tokens: number("forced tokens", forced)?,
        source: CalibrationSource::Measured,
    })
}

fn rule_and_value(text: &str) -> Result<(RuleName, &str), String> {
    let names = RuleName::ALL.map(RuleName::name).join(", ");
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("found `{text}`, expected RULE=VALUE with RULE one of {names}"))?;
    RuleName::ALL
        .into_iter()
        .find(|rule| rule.name() == name)
        .map(|rule| (rule, value))
        .ok_or_else(|| format!("found rule `{name}`, expected one of {names}"))
}

/// `RULE=N`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_divisor(text: &str) -> Result<(RuleName, u32), String> {
    let (rule, value) = rule_and_value(text)?;
    number(rule.name(), value).map(|divisor| (rule, divisor))
}

/// `RULE=VALUE`, a signed proportion: `gross_loss=2%`, `net_change=-1pp`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_rule_limit(text: &str) -> Result<(RuleName, f64), String> {
    let (rule, value) = rule_and_value(text)?;
    let limit = parse_proportion(value)?;
    if rule == RuleName::NetChange && limit > 0.0 {
        return Err(format!(
            "found net_change={value}, expected zero or less, such as net_change=-1pp"
        ));
    }
    // Zero has no sign in a digest.
    Ok((rule, if limit == 0.0 { 0.0 } else { limit }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_have_usual_settings_and_take_others() {
        assert_eq!(
            parse_panel("math:cases=1319").unwrap().plan,
            PanelPlan::Math {
                task: "gsm8k".to_owned(),
                cases: 1319,
                max_new_tokens: 512
            }
        );
        assert_eq!(
            parse_panel("nll:documents=64,targets=32,length=8k")
                .unwrap()
                .plan,
            PanelPlan::Nll {
                task: "wikipedia-nll".to_owned(),
                length: 8192,
                documents: 64,
                targets: 32
            }
        );
        assert_eq!(
            parse_panel("retrieval:length=768,cases=3,max_new_tokens=6,task=needle")
                .unwrap()
                .plan,
            PanelPlan::Retrieval {
                task: "needle".to_owned(),
                length: 768,
                cases: 3,
                max_new_tokens: 6
            }
        );
    }

    #[test]
    fn panels_have_the_tasks_of_their_kind_unless_they_name_one() {
        let panel = |text: &str| parse_panel(text).unwrap();
        let others = ["math:cases=4,task=demo-math", "math:cases=9,task=gsm8k"];
        let others = others.map(|text| panel(text).plan);
        let alike = panel("math:cases=7").beside(&others);
        assert_eq!(alike, panel("math:cases=7,task=demo-math").plan);
        let named = panel("math:cases=7,task=gsm8k-plain");
        assert_eq!(named.beside(&others), named.plan);
        let alone = panel("nll:length=1k,documents=8");
        assert_eq!(alone.beside(&others), alone.plan);
    }

    #[test]
    fn panels_are_refused_by_what_is_wrong_with_them() {
        for (text, message) in [
            ("math", "expected math:cases=N"),
            ("maths:cases=1", "found kind `maths`"),
            ("math:", "found ``, expected KEY=VALUE"),
            ("math:task=gsm8k", "found no cases, expected one"),
            ("math:case=1", "found no cases beside case=1, expected one"),
            ("math:cases=1,cases=2", "cases twice"),
            ("math:cases=1,length=9", "found length, expected"),
            ("nll:length=1k", "found no documents"),
            ("retrieval:cases=2", "found no length"),
            ("math:cases=-1", "found `-1`"),
            ("math:cases=+1", "found `+1`"),
            ("math:cases=1e3", "found `1e3`"),
            ("math:cases=4294967296", "found `4294967296`"),
            ("math:cases=4194304k", "found `4194304k`"),
            ("math:cases=k", "found `k`"),
        ] {
            let found = parse_panel(text).unwrap_err();
            assert!(found.contains(message), "{text}: {found}");
        }
    }

    #[test]
    fn calibration_divisors_and_limits() {
        let plan = parse_calibration("16:1k,8k:128").unwrap();
        assert_eq!(plan.lengths, [1024, 8192]);
        assert_eq!((plan.documents, plan.forced_tokens), (16, 128));
        for text in ["", "16", "16:1k", "16::128", "16:1k:128:1", "x:1k:128"] {
            assert!(parse_calibration(text).is_err(), "{text}");
        }
        assert_eq!(parse_divisor("nll=12"), Ok((RuleName::Nll, 12)));
        for text in ["nll", "nil=12", "nll=0.5", "nll=-1", "=3"] {
            assert!(parse_divisor(text).is_err(), "{text}");
        }
        for (text, limit) in [
            ("gross_loss=2%", (RuleName::GrossLoss, 0.02)),
            ("net_change=-1pp", (RuleName::NetChange, -0.01)),
            ("net_change=-0", (RuleName::NetChange, 0.0)),
            ("nll=0.7%", (RuleName::Nll, 0.007)),
        ] {
            let found = parse_rule_limit(text).unwrap();
            assert_eq!(found, limit, "{text}");
            assert!(found.1 != 0.0 || found.1.is_sign_positive(), "{text}");
        }
        for text in ["net_change=1pp", "gross_loss=nan", "gross_loss=", "x=1%"] {
            assert!(parse_rule_limit(text).is_err(), "{text}");
        }
    }
}
