//! The recipe grammar.
//!
//! ```text
//! recipe   = "native" | "AF" | "RF" | "SF" | "AD" | "RD" | "SD"
//!          | "k=" storage ",v=" storage { "," option }
//! storage  = format [ ":" policy ]
//! format   = "native" | "e4m3" | "e5m2" | "int8" | int4 | block
//! int4     = "int4" [ "/32" | "/64" ]
//! block    = "q8_0" | "q5_1" | "q5_0" | "q4_1" | "q4_0" | "iq4_nl"
//! policy   = "fixed" | "dynamic"
//! option   = "q=" ( "native" | "e4m3" ) | "sink=" tokens | "skip-layers=" layer { "," layer }
//! tokens   = digits, from 1 to 128
//! layer    = [ "-" ] digits
//! ```
//!
//! A policy on both components belongs to each; one on `v=` alone belongs to every quantised
//! component; none at all means dynamic. Block formats, which llama.cpp's servers store, have their
//! scales in their blocks and no policy. Nor has `int4`, whose groups of 32 elements (or 64, `int4/64`)
//! hold a scale and a minimum each: it is dynamic, and `:dynamic` behind it says nothing more.
//!
//! - `q=e4m3`: every query head vector passes through E4M3 under a scale of its own before attention
//!   reads it.
//! - `sink=4`: the first 4 tokens of every sequence are stored natively.
//! - `skip-layers=0,-1`: the first and the last layer stay native, queries included.
//!
//! The canonical spelling prints the policy of each quantised component, leaves `q=native` and the
//! `/32` of `int4` out, gives options in the order above and sorts the skipped layers.

mod error;
mod hint;

use super::{BlockFormat, Component, Format, GroupSize, Recipe, ScalePolicy};

pub use error::RecipeError;
use hint::{format_hint, recipe_hint};

/// The six named recipes with their canonical spelling: A = V quantised, R = K quantised,
/// S = both; F = fixed scales, D = dynamic scales.
pub const NAMED: [(&str, &str); 6] = [
    ("AF", "k=native,v=e4m3:fixed"),
    ("RF", "k=e4m3:fixed,v=native"),
    ("SF", "k=e4m3:fixed,v=e4m3:fixed"),
    ("AD", "k=native,v=e4m3:dynamic"),
    ("RD", "k=e4m3:dynamic,v=native"),
    ("SD", "k=e4m3:dynamic,v=e4m3:dynamic"),
];

/// Most tokens of a sequence that `sink=` keeps native: a part of the probe that proves the rest to be
/// quantised.
pub const MOST_SINK: u32 = 128;

impl Recipe {
    /// Reads a name or a specification; see the module's grammar. A specification that equals one
    /// of the six gets its name, any other takes its canonical spelling as its name.
    ///
    /// # Errors
    /// [`RecipeError`] names what was found, what is expected and, where it can tell, what was
    /// probably meant.
    pub fn parse(text: &str) -> Result<Recipe, RecipeError> {
        if text == "native" {
            return Ok(Recipe::native());
        }
        if let Some((_, spec)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Parser { recipe: spec }.parse();
        }
        if !text.starts_with("k=") {
            return Err(RecipeError::Unknown {
                found: text.to_owned(),
                hint: recipe_hint(text),
            });
        }
        Parser { recipe: text }.parse()
    }

    /// The canonical spelling, which [`Recipe::parse`] reads back to an equal recipe.
    pub fn spec(&self) -> String {
        let mut spec = format!("k={},v={}", storage(self.k), storage(self.v));
        if self.q != Format::Native {
            spec.push_str(&format!(",q={}", self.q));
        }
        if self.sink > 0 {
            spec.push_str(&format!(",sink={}", self.sink));
        }
        let mut layers = self.skip_layers.clone();
        sort_layers(&mut layers);
        for (i, layer) in layers.iter().enumerate() {
            let lead = if i == 0 { ",skip-layers=" } else { "," };
            spec.push_str(&format!("{lead}{layer}"));
        }
        spec
    }
}

fn storage(component: Component) -> String {
    match component.scale {
        Some(scale) => format!("{}:{scale}", component.format),
        None => component.format.to_string(),
    }
}

/// Layers counted from the start, then layers counted from the end, each ascending.
fn sort_layers(layers: &mut [i32]) {
    layers.sort_by_key(|&layer| (layer < 0, layer));
}

/// Name of a recipe with this canonical spelling.
fn name_of(spec: &str) -> String {
    NAMED
        .iter()
        .find(|(_, named)| *named == spec)
        .map_or(spec, |(name, _)| name)
        .to_owned()
}

/// A format with the policy that stands on it.
type Written = (Format, Option<ScalePolicy>);

/// Parser of one specification; holds the text for messages.
struct Parser<'a> {
    recipe: &'a str,
}

#[derive(Default)]
struct Options {
    q: Option<Format>,
    sink: Option<u32>,
    skip_layers: Option<Vec<i32>>,
}

impl Parser<'_> {
    fn parse(&self) -> Result<Recipe, RecipeError> {
        let mut parts = self.recipe.split(',');
        let k = self.component(parts.next(), "k=", "k=FORMAT at the start")?;
        let v = self.component(parts.next(), "v=", "v=FORMAT after k=FORMAT")?;
        let (k, v) = self.resolve(k, v)?;
        let options = self.options(parts)?;
        let mut recipe = Recipe {
            name: String::new(),
            k,
            v,
            q: options.q.unwrap_or(Format::Native),
            sink: options.sink.unwrap_or(0),
            skip_layers: options.skip_layers.unwrap_or_default(),
        };
        if recipe.is_native() {
            self.refuse_options(&recipe)?;
            return Ok(Recipe::native());
        }
        sort_layers(&mut recipe.skip_layers);
        recipe.name = name_of(&recipe.spec());
        Ok(recipe)
    }

    fn component(
        &self,
        part: Option<&str>,
        key: &str,
        expected: &'static str,
    ) -> Result<Written, RecipeError> {
        let part = part.unwrap_or_default();
        let value = part
            .strip_prefix(key)
            .ok_or_else(|| self.part(part, expected))?;
        let (format, policy) = match value.split_once(':') {
            Some((format, policy)) => (format, Some(self.policy(policy)?)),
            None => (value, None),
        };
        let format = self.format(format)?;
        match (format, policy) {
            (Format::Int4(_), Some(ScalePolicy::Fixed)) => {
                Err(self.place("groups of int4 hold their scales, expected no policy on it"))
            }
            (Format::Int4(_), _) => Ok((format, None)),
            _ => Ok((format, policy)),
        }
    }

    fn format(&self, found: &str) -> Result<Format, RecipeError> {
        match found {
            "native" => Ok(Format::Native),
            "e4m3" => Ok(Format::E4m3),
            "e5m2" => Ok(Format::E5m2),
            "int8" => Ok(Format::Int8),
            "int4" | "int4/32" => Ok(Format::Int4(GroupSize::Of32)),
            "int4/64" => Ok(Format::Int4(GroupSize::Of64)),
            _ => BlockFormat::from_name(found)
                .map(Format::Block)
                .ok_or_else(|| RecipeError::Format {
                    recipe: self.recipe.to_owned(),
                    found: found.to_owned(),
                    hint: format_hint(found),
                }),
        }
    }

    fn policy(&self, found: &str) -> Result<ScalePolicy, RecipeError> {
        match found {
            "fixed" => Ok(ScalePolicy::Fixed),
            "dynamic" => Ok(ScalePolicy::Dynamic),
            _ => Err(RecipeError::Policy {
                recipe: self.recipe.to_owned(),
                found: found.to_owned(),
            }),
        }
    }

    /// Decides which policy each component has.
    fn resolve(&self, k: Written, v: Written) -> Result<(Component, Component), RecipeError> {
        let on_block =
            |(format, policy): Written| matches!(format, Format::Block(_)) && policy.is_some();
        if on_block(k) || on_block(v) {
            return Err(self.place("block formats hold their scales, expected no policy on one"));
        }
        // Formats whose scales have a policy.
        let quantised = |format: Format| format.byte_format().is_some();
        if k.1.is_some() && !quantised(k.0) {
            return Err(self.place("native keys have no scale, expected no policy on k=native"));
        }
        if k.1.is_some() && v.1.is_some() && !quantised(v.0) {
            return Err(self.place("native values have no scale, expected no policy on v=native"));
        }
        if v.1.is_some() && !quantised(k.0) && !quantised(v.0) {
            return Err(self
                .place("neither keys nor values have a scale with a policy, expected none on v="));
        }
        if k.1.is_some() && v.1.is_none() && quantised(v.0) {
            return Err(self.place(
                "keys have a scale policy and quantised values have none, expected one on both or on v= alone",
            ));
        }
        let shared = v.1.unwrap_or(ScalePolicy::Dynamic);
        let component = |(format, own): Written| Component {
            format,
            scale: quantised(format).then(|| own.unwrap_or(shared)),
        };
        Ok((component(k), component(v)))
    }

    /// Reads the options. A part without `=` right after `skip-layers=` is one more layer.
    fn options<'p>(&self, parts: impl Iterator<Item = &'p str>) -> Result<Options, RecipeError> {
        let mut options = Options::default();
        let mut in_layers = false;
        for part in parts {
            if let Some(layer) = part.strip_prefix("skip-layers=") {
                if options.skip_layers.is_some() {
                    return Err(self.part(part, "skip-layers= once"));
                }
                options.skip_layers = Some(vec![self.layer(layer)?]);
                in_layers = true;
            } else if let Some(format) = part.strip_prefix("q=") {
                let q = self.query_format(part, format)?;
                if options.q.replace(q).is_some() {
                    return Err(self.part(part, "q= once"));
                }
                in_layers = false;
            } else if let Some(tokens) = part.strip_prefix("sink=") {
                if options.sink.replace(self.sink(tokens)?).is_some() {
                    return Err(self.part(part, "sink= once"));
                }
                in_layers = false;
            } else if let (true, false, Some(layers)) =
                (in_layers, part.contains('='), options.skip_layers.as_mut())
            {
                layers.push(self.layer(part)?);
            } else {
                return Err(self.part(part, "q=e4m3, sink=TOKENS or skip-layers=LAYER[,LAYER...]"));
            }
        }
        refuse_repeated(options.skip_layers.as_deref().unwrap_or_default())?;
        Ok(options)
    }

    fn query_format(&self, part: &str, format: &str) -> Result<Format, RecipeError> {
        match format {
            "native" => Ok(Format::Native),
            "e4m3" => Ok(Format::E4m3),
            _ => Err(self.part(part, "q=native or q=e4m3")),
        }
    }

    fn sink(&self, found: &str) -> Result<u32, RecipeError> {
        let plain = found.bytes().all(|byte| byte.is_ascii_digit());
        plain
            .then(|| found.parse().ok())
            .flatten()
            .filter(|tokens| (1..=MOST_SINK).contains(tokens))
            .ok_or_else(|| RecipeError::Sink {
                recipe: self.recipe.to_owned(),
                found: found.to_owned(),
            })
    }

    fn layer(&self, found: &str) -> Result<i32, RecipeError> {
        let digits = found.strip_prefix('-').unwrap_or(found);
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain
            .then(|| found.parse().ok())
            .flatten()
            .ok_or_else(|| RecipeError::Layer {
                recipe: self.recipe.to_owned(),
                found: found.to_owned(),
            })
    }

    fn refuse_options(&self, recipe: &Recipe) -> Result<(), RecipeError> {
        let option = if recipe.q != Format::Native {
            "q="
        } else if recipe.sink > 0 {
            "sink="
        } else if !recipe.skip_layers.is_empty() {
            "skip-layers="
        } else {
            return Ok(());
        };
        Err(RecipeError::NothingQuantised {
            recipe: self.recipe.to_owned(),
            option,
        })
    }

    fn part(&self, found: &str, expected: &'static str) -> RecipeError {
        RecipeError::Part {
            recipe: self.recipe.to_owned(),
            found: found.to_owned(),
            expected,
        }
    }

    fn place(&self, problem: &'static str) -> RecipeError {
        RecipeError::PolicyPlace {
            recipe: self.recipe.to_owned(),
            problem,
        }
    }
}

fn refuse_repeated(layers: &[i32]) -> Result<(), RecipeError> {
    for (i, &layer) in layers.iter().enumerate() {
        if layers[..i].contains(&layer) {
            return Err(RecipeError::LayerTwice { layer });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
