//! Why texts are no recipes.

use super::{Format, MOST_SINK};

/// Why a text is no recipe, or a recipe does not fit a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    /// Neither a name nor a specification.
    #[error(
        "recipe `{found}`: expected native, AF, RF, SF, AD, RD, SD or k=FORMAT,v=FORMAT[:fixed|dynamic]{hint}"
    )]
    Unknown {
        /// The text.
        found: String,
        /// What was probably meant, starting with a separator; empty where nothing comes close.
        hint: String,
    },
    /// A part is missing, doubled or out of place.
    #[error("recipe `{recipe}`: found `{found}`, expected {expected}")]
    Part {
        /// The whole recipe.
        recipe: String,
        /// The offending part; empty at the end.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// An unknown number format.
    #[error(
        "recipe `{recipe}`: found format `{found}`, expected native, e4m3, e5m2, int8, int4 or, on servers, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl{hint}"
    )]
    Format {
        /// The whole recipe.
        recipe: String,
        /// The format.
        found: String,
        /// What was probably meant, starting with a separator.
        hint: String,
    },
    /// A number of native tokens that is none.
    #[error(
        "recipe `{recipe}`: found sink `{found}`, expected a whole number of tokens from 1 to {MOST_SINK}"
    )]
    Sink {
        /// The whole recipe.
        recipe: String,
        /// The number.
        found: String,
    },
    /// An unknown scale policy.
    #[error("recipe `{recipe}`: found scale policy `{found}`, expected fixed or dynamic")]
    Policy {
        /// The whole recipe.
        recipe: String,
        /// The policy.
        found: String,
    },
    /// A policy that leaves open, or contradicts, what it applies to.
    #[error("recipe `{recipe}`: {problem}")]
    PolicyPlace {
        /// The whole recipe.
        recipe: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// An option of a recipe that quantises neither keys nor values.
    #[error(
        "recipe `{recipe}`: found `{option}` while keys and values are both native, expected a quantised component"
    )]
    NothingQuantised {
        /// The whole recipe.
        recipe: String,
        /// The option.
        option: &'static str,
    },
    /// An unreadable layer number.
    #[error(
        "recipe `{recipe}`: found layer `{found}`, expected a whole number such as 0 or -1 (the last)"
    )]
    Layer {
        /// The whole recipe.
        recipe: String,
        /// The number.
        found: String,
    },
    /// A skipped layer is named twice.
    #[error("skip-layers names layer {layer} twice, expected each layer once")]
    LayerTwice {
        /// The layer as written.
        layer: i32,
    },
    /// A skipped layer that the model does not have.
    #[error("skip-layers names layer {layer}, but the model has {layers} layers")]
    LayerOutOfRange {
        /// The layer as written.
        layer: i32,
        /// Layers of the model.
        layers: usize,
    },
    /// A skipped layer that has nothing to quantise.
    #[error("skip-layers names layer {layer}, which stores no keys and values")]
    LayerWithoutHeads {
        /// The layer as written.
        layer: i32,
    },
    /// Every layer is skipped.
    #[error(
        "skip-layers names all {layers} layers of the model that store keys and values: nothing is left \
         to quantise"
    )]
    EveryLayerSkipped {
        /// Layers of the model that store keys and values.
        layers: usize,
    },
    /// Head vectors of the model are no whole groups.
    #[error(
        "{format} has groups of {elements} elements, and head_dim {head_dim} is no multiple of that"
    )]
    Groups {
        /// The format.
        format: Format,
        /// Elements per head vector.
        head_dim: usize,
        /// Elements per group.
        elements: usize,
    },
}
