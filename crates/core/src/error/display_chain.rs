//! Formats an error with its causes in one line.

use std::error::Error;

/// Formats an error and its sources as one line for people.
#[must_use]
pub fn display_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
