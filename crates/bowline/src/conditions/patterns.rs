//! The patterns of `matches`, compiled once when a condition is read.
//!
//! The matcher takes time linear in the text and in the size of the compiled pattern, whatever the
//! text holds.

use std::collections::HashMap;
use std::sync::Arc;

use cel::common::types::{CelBool, CelString};
use cel::common::value::CowVal;
use cel::{Context, ExecutionError, FunctionContext};
use regex::{Regex, RegexBuilder};

use super::Fault;

/// The function that takes a pattern.
pub(super) const MATCHES: &str = "matches";

/// Sizes of compiled patterns in bytes, each with the units of work that a match of a pattern up
/// to that size costs for every [`super::cost::SCANNED_BYTES`] of its text. The last is the limit.
const PATTERN_SIZES: [(usize, u64); 4] = [
    (64 * 1024, 1),
    (512 * 1024, 4),
    (2 * 1024 * 1024, 16),
    (10 * 1024 * 1024, 64),
];

/// Compiled patterns by their texts.
#[derive(Clone, Debug, Default)]
pub(super) struct Patterns(HashMap<String, Pattern>);

#[derive(Clone, Debug)]
struct Pattern {
    regex: Regex,
    weight: u64,
}

/// A function of the language.
type Function = Box<
    dyn for<'context, 'call> Fn(
            &mut FunctionContext<'context, 'call>,
        ) -> Result<CowVal<'context, 'call>, ExecutionError>
        + Send
        + Sync,
>;

impl Patterns {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// It is no pattern, or a too large one.
    pub(super) fn compile(&mut self, text: &str) -> Result<(), Fault> {
        if self.0.contains_key(text) {
            return Ok(());
        }
        for (size, weight) in PATTERN_SIZES {
            match RegexBuilder::new(text).size_limit(size).build() {
                Ok(regex) => {
                    self.0.insert(text.to_owned(), Pattern { regex, weight });
                    return Ok(());
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => {
                    // The last line says what is wrong; those before it repeat the pattern.
                    let reason = error.to_string();
                    let reason = reason.lines().last().unwrap_or_default();
                    return Err(Fault::BadPattern {
                        pattern: text.to_owned(),
                        reason: reason.trim_start_matches("error: ").to_owned(),
                    });
                }
            }
        }
        Err(Fault::LargePattern(text.to_owned()))
    }

    /// Returns the units of work that a match of a pattern costs for every scanned stretch.
    pub(super) fn weight(&self, text: &str) -> u64 {
        self.0.get(text).map_or(1, |pattern| pattern.weight)
    }

    /// Makes `matches` known to an evaluation.
    pub(super) fn register(self: &Arc<Self>, context: &mut Context<'_, '_>) {
        if self.0.is_empty() {
            return;
        }
        let patterns = Arc::clone(self);
        let matches: Function = Box::new(move |call| {
            let matched = patterns.matches(call);
            matched
                .map(|matched| CowVal::owned(CelBool::from(matched)))
                .ok_or_else(|| ExecutionError::no_such_overload(MATCHES, Vec::new()))
        });
        let added = context.add_function(MATCHES, matches);
        debug_assert!(added.is_ok(), "the language has no `matches` of its own");
    }

    /// Returns whether a text matches; nothing where the arguments are not two texts.
    fn matches(&self, call: &FunctionContext<'_, '_>) -> Option<bool> {
        let ((Some(text), [pattern]) | (None, [text, pattern])) =
            (&call.this, call.args.as_slice())
        else {
            return None;
        };
        let text = text.downcast_ref::<CelString<'_>>()?;
        let pattern = pattern.downcast_ref::<CelString<'_>>()?;
        // Every pattern was compiled when the condition was read.
        let pattern = self.0.get(pattern.inner())?;
        Some(pattern.regex.is_match(text.inner()))
    }
}
