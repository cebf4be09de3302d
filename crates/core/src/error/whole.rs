//! An error and what caused it, as one line.

use std::error::Error;

/// Writes an error and its causes as one line for people.
#[must_use]
pub fn whole(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
