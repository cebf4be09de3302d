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
pub enum Undecided {
    /// It cannot be evaluated on these arguments.
    #[error("{0}")]
    Because(String),
    /// It takes more work than the bound of every condition.
    #[error("it takes {cost} units of work on these arguments, of {cost_max} at most")]
    TooCostly {
        /// The estimate.
        cost: u64,
        /// The bound.
        cost_max: u64,
    },
    /// It takes more work than [`Effort::Quick`] allows.
    #[error("it takes too long to be decided at once")]
    TakesLong,
}

/// How much work an evaluation may take on the thread that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// So little that a thread that serves others can do it.
    Quick,
    /// As much as the bound of every condition.
    Full,
}

/// Says whether a call with these arguments may be made.
pub trait Condition: fmt::Debug + Send + Sync {
    /// Returns it as it was written.
    fn text(&self) -> &str;

    /// Decides.
    ///
    /// # Errors
    /// It cannot: an argument is missing or of another type, or takes too much to look at, or
    /// takes more work than `effort` allows.
    fn holds(&self, facts: &Facts<'_>, effort: Effort) -> Result<bool, Undecided>;
}

/// A condition and what it is about.
#[derive(Clone, Debug)]
pub struct When {
    /// What it is about; without a kind, all kinds.
    pub pattern: Pattern,
    /// What must hold of the arguments.
    pub condition: std::sync::Arc<dyn Condition>,
}
