//! Modules that a config leaves as they are.

use regex::Regex;

/// Which modules: by the name or the start of it, by the end of it, or by an expression behind
/// `re:`, which holds from the start.
#[derive(Clone, Debug)]
pub(crate) struct Ignored {
    text: String,
    expression: Option<Regex>,
}

impl PartialEq for Ignored {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Ignored {
    /// Reads an entry.
    ///
    /// # Errors
    /// When what stands behind `re:` is no expression.
    pub(in super::super) fn new(text: &str) -> Result<Self, regex::Error> {
        let expression = text.strip_prefix("re:");
        let expression = expression.map(|expression| Regex::new(&format!("^(?:{expression})")));
        Ok(Ignored {
            text: text.to_owned(),
            expression: expression.transpose()?,
        })
    }

    /// Whether a module of this name is among them.
    pub(super) fn matches(&self, module: &str) -> bool {
        if let Some(expression) = &self.expression {
            return expression.is_match(module);
        }
        let name = self.text.trim_end_matches('*').trim_end_matches('.');
        let start = module.strip_prefix(name);
        let end = module.strip_suffix(name);
        start.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            || end.is_some_and(|rest| rest.ends_with('.'))
    }
}
