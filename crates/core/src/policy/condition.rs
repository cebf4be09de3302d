//! Conditions on the arguments of a call. The language they are written in is known to whoever
//! makes them, and to nobody else.

use std::fmt;

use thiserror::Error;

use super::pattern::Pattern;

/// What a condition may look at.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Who asks.
    pub principal: &'a str,
    /// Its role, where it has a named one.
    pub role: Option<&'a str>,
    /// The server.
    pub server: &'a str,
    /// The server's own name of what is asked for.
    pub name: &'a str,
    /// The arguments, a JSON object as the caller wrote it.
    pub arguments: &'a [u8],
}

/// A condition could not be decided, which refuses the call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Undecided(pub String);

/// Says whether a call with these arguments may be made.
pub trait Condition: fmt::Debug + Send + Sync {
    /// Returns it as it was written.
    fn text(&self) -> &str;

    /// Decides.
    ///
    /// # Errors
    /// It cannot: an argument is missing or of another type, or takes too much to look at.
    fn holds(&self, facts: &Facts<'_>) -> Result<bool, Undecided>;
}

/// A condition and what it is about.
#[derive(Clone, Debug)]
pub struct When {
    /// What it is about; without a kind, all kinds.
    pub pattern: Pattern,
    /// What must hold of the arguments.
    pub condition: std::sync::Arc<dyn Condition>,
}
