//! One computation: the same from flags and from a JSON object.

use clap::Subcommand;
use serde_json::{Map, Number, Value};

use super::super::values::parse_alpha;
use crate::stats::{self, BootstrapPlan, MAX_COUNT, MAX_RESAMPLES, PValue, Side, StatsError};

/// A method with its inputs. Names and inputs are those of DESIGN.md section 5.
#[derive(Clone, Debug, PartialEq, Subcommand)]
#[command(rename_all = "snake_case")]
pub enum Request {
    /// Exact one-sided upper bound of k/n.
    ClopperPearsonUpper {
        /// Successes.
        #[arg(long)]
        k: u64,
        /// Trials.
        #[arg(long)]
        n: u64,
        /// One-sided alpha, as 0.05 or 0.05/24.
        #[arg(long, value_parser = parse_alpha)]
        alpha: f64,
    },
    /// One-sided lower score bound of (gained - lost)/n.
    TangoLower(OneSided),
    /// One-sided upper score bound of (gained - lost)/n.
    TangoUpper(OneSided),
    /// Two-sided score interval of (gained - lost)/n.
    TangoInterval {
        #[command(flatten)]
        discordant: Discordant,
        /// Pairs.
        #[arg(long)]
        n: u64,
        /// Confidence, such as 0.95.
        #[arg(long)]
        confidence: f64,
    },
    /// Exact two-sided McNemar test.
    McnemarExact(Discordant),
    /// Exact sign test; zeros are left out of both counts.
    SignTest {
        /// Positive differences.
        #[arg(long)]
        positive: u64,
        /// Negative differences.
        #[arg(long)]
        negative: u64,
    },
    /// Holm-adjusted p-values; NaN keeps its place in the family.
    Holm {
        /// p-values, separated by commas.
        #[arg(
            long,
            value_delimiter = ',',
            required = true,
            allow_hyphen_values = true
        )]
        p: Vec<f64>,
    },
    /// One-sided upper paired-bootstrap bound of mean(candidate)/mean(native) - 1.
    BootstrapRatioUpper {
        /// Native values, separated by commas.
        #[arg(
            long,
            value_delimiter = ',',
            required = true,
            allow_hyphen_values = true
        )]
        native: Vec<f64>,
        /// Candidate values of the same documents, separated by commas.
        #[arg(
            long,
            value_delimiter = ',',
            required = true,
            allow_hyphen_values = true
        )]
        candidate: Vec<f64>,
        /// One-sided alpha, as 0.05 or 0.05/24.
        #[arg(long, value_parser = parse_alpha)]
        alpha: f64,
        /// Resamples.
        #[arg(long, default_value_t = 100_000)]
        resamples: u32,
        /// Seed of the generator.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

/// Discordant pairs.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Discordant {
    /// Pairs where the control is right and the candidate wrong.
    #[arg(long)]
    lost: u64,
    /// Pairs where the candidate is right and the control wrong.
    #[arg(long)]
    gained: u64,
}

/// Inputs of a one-sided score bound.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct OneSided {
    #[command(flatten)]
    discordant: Discordant,
    /// Pairs.
    #[arg(long)]
    n: u64,
    /// One-sided alpha, as 0.05 or 0.05/24.
    #[arg(long, value_parser = parse_alpha)]
    alpha: f64,
}

impl OneSided {
    fn bound(&self, side: Side) -> Result<f64, StatsError> {
        let Discordant { lost, gained } = self.discordant;
        stats::tango_bound(lost, gained, self.n, self.alpha, side)
    }
}

/// Why a JSON object is no request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A field is absent.
    #[error("missing `{name}`, expected {expected}")]
    Missing {
        /// Field.
        name: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// A field has another type or range.
    #[error("`{name}` is {found}, expected {expected}")]
    Mistyped {
        /// Field, with the index in a list.
        name: String,
        /// Its JSON text, shortened.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// No such method.
    #[error("unknown method `{method}`, expected one of {}", METHODS.join(", "))]
    UnknownMethod {
        /// Method named.
        method: String,
    },
}

const METHODS: [&str; 8] = [
    "clopper_pearson_upper",
    "tango_lower",
    "tango_upper",
    "tango_interval",
    "mcnemar_exact",
    "sign_test",
    "holm",
    "bootstrap_ratio_upper",
];

impl Request {
    /// Reads a request from the fields of a JSON object; fields that the method does not use are
    /// left alone.
    ///
    /// # Errors
    /// An unknown method, a missing or a mistyped field.
    pub fn from_json(object: &Map<String, Value>) -> Result<Self, RequestError> {
        let fields = Fields(object);
        let method = fields.text("method")?;
        Ok(match method {
            "clopper_pearson_upper" => Request::ClopperPearsonUpper {
                k: fields.count("k")?,
                n: fields.count("n")?,
                alpha: fields.number("alpha")?,
            },
            "tango_lower" => Request::TangoLower(fields.one_sided()?),
            "tango_upper" => Request::TangoUpper(fields.one_sided()?),
            "tango_interval" => Request::TangoInterval {
                discordant: fields.discordant()?,
                n: fields.count("n")?,
                confidence: fields.number("confidence")?,
            },
            "mcnemar_exact" => Request::McnemarExact(fields.discordant()?),
            "sign_test" => Request::SignTest {
                positive: fields.count("positive")?,
                negative: fields.count("negative")?,
            },
            "holm" => Request::Holm {
                p: fields.list("p", Some(f64::NAN))?,
            },
            "bootstrap_ratio_upper" => Request::BootstrapRatioUpper {
                native: fields.list("native", None)?,
                candidate: fields.list("candidate", None)?,
                alpha: fields.number("alpha")?,
                resamples: fields.resamples()?,
                seed: fields.count("seed")?,
            },
            unknown => {
                return Err(RequestError::UnknownMethod {
                    method: shortened(unknown.to_owned()),
                });
            }
        })
    }

    /// Computes the answer, as named JSON values in the order of DESIGN.md section 5.
    ///
    /// # Errors
    /// Inputs outside the method's domain.
    pub fn compute(&self) -> Result<Map<String, Value>, StatsError> {
        Ok(match self {
            Request::ClopperPearsonUpper { k, n, alpha } => {
                answer([("value", stats::clopper_pearson_upper(*k, *n, *alpha)?)])
            }
            Request::TangoLower(inputs) => answer([("value", inputs.bound(Side::Lower)?)]),
            Request::TangoUpper(inputs) => answer([("value", inputs.bound(Side::Upper)?)]),
            Request::TangoInterval {
                discordant: Discordant { lost, gained },
                n,
                confidence,
            } => {
                let (lower, upper) = stats::tango_interval(*lost, *gained, *n, *confidence)?;
                answer([("lower", lower), ("upper", upper)])
            }
            Request::McnemarExact(Discordant { lost, gained }) => {
                check_total(*lost, *gained)?;
                let PValue { p, log10_p } = stats::mcnemar_exact(*lost, *gained);
                answer([("p", p), ("log10_p", log10_p)])
            }
            Request::SignTest { positive, negative } => {
                check_total(*positive, *negative)?;
                let test = stats::sign_test(*positive, *negative);
                answer([
                    ("p_two_sided", test.two_sided.p),
                    ("p_greater", test.greater.p),
                    ("log10_p_two_sided", test.two_sided.log10_p),
                ])
            }
            Request::Holm { p } => {
                let adjusted = stats::holm(p)?.into_iter().map(json).collect();
                Map::from_iter([("adjusted".to_owned(), Value::Array(adjusted))])
            }
            Request::BootstrapRatioUpper {
                native,
                candidate,
                alpha,
                resamples,
                seed,
            } => {
                let (resamples, seed) = (*resamples, *seed);
                let plan = BootstrapPlan { resamples, seed };
                let bound =
                    stats::bootstrap_ratio_bound(native, candidate, *alpha, Side::Upper, plan)?;
                answer([
                    ("value", bound.value),
                    ("monte_carlo_se", bound.monte_carlo_se),
                ])
            }
        })
    }
}

/// Refuses counts whose tail sums would not end while someone waits.
fn check_total(first: u64, second: u64) -> Result<(), StatsError> {
    match first.saturating_add(second) {
        n if n > MAX_COUNT => Err(StatsError::TooManyTrials { n }),
        _ => Ok(()),
    }
}

fn answer<const N: usize>(values: [(&str, f64); N]) -> Map<String, Value> {
    let named = values.into_iter();
    named
        .map(|(name, value)| (name.to_owned(), json(value)))
        .collect()
}

/// A JSON number, `null` for NaN.
fn json(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Fields of a JSON object, read with a message for every way in which they can be wrong. A field
/// may also stand in an object `inputs` of the line, as test vectors are often laid out.
struct Fields<'a>(&'a Map<String, Value>);

const COUNT: &str = "a whole number of at least 0";
const NUMBER: &str = "a number";

impl<'a> Fields<'a> {
    fn get(&self, name: &'static str, expected: &'static str) -> Result<&'a Value, RequestError> {
        let missing = RequestError::Missing { name, expected };
        let nested = || self.0.get("inputs")?.as_object()?.get(name);
        self.0.get(name).or_else(nested).ok_or(missing)
    }

    fn text(&self, name: &'static str) -> Result<&'a str, RequestError> {
        let value = self.get(name, "the name of a method")?;
        let mistyped = || mistyped(name.to_owned(), value, "the name of a method");
        value.as_str().ok_or_else(mistyped)
    }

    fn count(&self, name: &'static str) -> Result<u64, RequestError> {
        let value = self.get(name, COUNT)?;
        whole(value).ok_or_else(|| mistyped(name.to_owned(), value, COUNT))
    }

    fn resamples(&self) -> Result<u32, RequestError> {
        let name = "resamples";
        const SMALL: &str = "a whole number from 1 to 10000000";
        const _: () = assert!(MAX_RESAMPLES == 10_000_000);
        let value = self.get(name, SMALL)?;
        let count = whole(value).and_then(|count| u32::try_from(count).ok());
        count.ok_or_else(|| mistyped(name.to_owned(), value, SMALL))
    }

    fn number(&self, name: &'static str) -> Result<f64, RequestError> {
        let value = self.get(name, NUMBER)?;
        let mistyped = || mistyped(name.to_owned(), value, NUMBER);
        value.as_f64().ok_or_else(mistyped)
    }

    /// A list of numbers; `null` items become `null_as`, where there is such a reading.
    fn list(&self, name: &'static str, null_as: Option<f64>) -> Result<Vec<f64>, RequestError> {
        const LIST: &str = "a list of numbers";
        let value = self.get(name, LIST)?;
        let items = value.as_array();
        let items = items.ok_or_else(|| mistyped(name.to_owned(), value, LIST))?;
        let numbers = items.iter().enumerate().map(|(index, item)| {
            let number = if item.is_null() {
                null_as
            } else {
                item.as_f64()
            };
            number.ok_or_else(|| mistyped(format!("{name}[{index}]"), item, NUMBER))
        });
        numbers.collect()
    }

    fn discordant(&self) -> Result<Discordant, RequestError> {
        Ok(Discordant {
            lost: self.count("lost")?,
            gained: self.count("gained")?,
        })
    }

    fn one_sided(&self) -> Result<OneSided, RequestError> {
        Ok(OneSided {
            discordant: self.discordant()?,
            n: self.count("n")?,
            alpha: self.number("alpha")?,
        })
    }
}

/// A whole number; `6.0` is one, `6.5` and `"6"` are not.
fn whole(value: &Value) -> Option<u64> {
    // Above 2^53 not every whole number is an f64.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let fraction = || {
        value
            .as_f64()
            .filter(|x| x.fract() == 0.0 && (0.0..=EXACT).contains(x))
    };
    value.as_u64().or_else(|| fraction().map(|x| x as u64))
}

fn mistyped(name: String, value: &Value, expected: &'static str) -> RequestError {
    RequestError::Mistyped {
        name,
        found: shortened(value.to_string()),
        expected,
    }
}

fn shortened(text: String) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
