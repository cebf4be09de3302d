//! Patterns of `matches`, compiled once when a condition is parsed.
//!
//! Matching takes time linear in the text and in the size of the compiled pattern, for any text.

use std::collections::HashMap;
use std::sync::Arc;

use cel::common::types::{CelBool, CelString};
use cel::common::value::CowVal;
use cel::{Context, ExecutionError, FunctionContext};
use regex::{Regex, RegexBuilder};

use super::ConditionParseError;

/// Name of the function with a pattern argument.
pub(super) const MATCHES_FUNCTION: &str = "matches";

/// Sizes of compiled patterns in bytes, with the cost of a match per
/// [`super::cost::SCANNED_BYTES`] of text. The last size is the limit.
const PATTERN_SIZES: [(usize, u64); 4] = [
    (64 * 1024, 1),
    (512 * 1024, 4),
    (2 * 1024 * 1024, 16),
    (10 * 1024 * 1024, 64),
];

/// Compiled patterns by their text.
#[derive(Clone, Debug, Default)]
pub(super) struct CompiledPatterns(HashMap<String, CompiledPattern>);

#[derive(Clone, Debug)]
struct CompiledPattern {
    regex: Regex,
    weight: u64,
}

/// A CEL function.
type CelFunction = Box<
    dyn for<'context, 'call> Fn(
            &mut FunctionContext<'context, 'call>,
        ) -> Result<CowVal<'context, 'call>, ExecutionError>
        + Send
        + Sync,
>;

impl CompiledPatterns {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The pattern is invalid or too large.
    pub(super) fn compile_pattern(&mut self, text: &str) -> Result<(), ConditionParseError> {
        if self.0.contains_key(text) {
            return Ok(());
        }
        for (size, weight) in PATTERN_SIZES {
            match RegexBuilder::new(text).size_limit(size).build() {
                Ok(regex) => {
                    self.0
                        .insert(text.to_owned(), CompiledPattern { regex, weight });
                    return Ok(());
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => {
                    // The last line states the error; earlier lines repeat the pattern.
                    let reason = error.to_string();
                    let reason = reason.lines().last().unwrap_or_default();
                    return Err(ConditionParseError::BadPattern {
                        pattern: text.to_owned(),
                        reason: reason.trim_start_matches("error: ").to_owned(),
                    });
                }
            }
        }
        Err(ConditionParseError::LargePattern(text.to_owned()))
    }

    /// Returns the cost of a match per scanned chunk.
    pub(super) fn pattern_weight(&self, text: &str) -> u64 {
        self.0.get(text).map_or(1, |pattern| pattern.weight)
    }

    /// Registers `matches` in an evaluation context.
    pub(super) fn register_function(self: &Arc<Self>, context: &mut Context<'_, '_>) {
        if self.0.is_empty() {
            return;
        }
        let patterns = Arc::clone(self);
        let matches: CelFunction = Box::new(move |call| {
            let matched = patterns.evaluate_match(call);
            matched
                .map(|matched| CowVal::owned(CelBool::from(matched)))
                .ok_or_else(|| ExecutionError::no_such_overload(MATCHES_FUNCTION, Vec::new()))
        });
        let added = context.add_function(MATCHES_FUNCTION, matches);
        debug_assert!(added.is_ok(), "the language has no `matches` of its own");
    }

    /// Returns whether a text matches; `None` unless both arguments are strings.
    fn evaluate_match(&self, call: &FunctionContext<'_, '_>) -> Option<bool> {
        let ((Some(text), [pattern]) | (None, [text, pattern])) =
            (&call.this, call.args.as_slice())
        else {
            return None;
        };
        let text = text.downcast_ref::<CelString<'_>>()?;
        let pattern = pattern.downcast_ref::<CelString<'_>>()?;
        // Every pattern was compiled when the condition was parsed.
        let pattern = self.0.get(pattern.inner())?;
        Some(pattern.regex.is_match(text.inner()))
    }
}
