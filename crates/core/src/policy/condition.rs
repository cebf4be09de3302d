//! Conditions on call arguments, independent of the condition language.

use std::fmt;

use thiserror::Error;

use super::pattern::FeaturePattern;

/// Input of a condition.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInput<'a> {
    /// The calling principal.
    pub principal: &'a str,
    /// The role, if named.
    pub role: Option<&'a str>,
    /// The server.
    pub server: &'a str,
    /// The upstream name of the feature.
    pub name: &'a str,
    /// The arguments, a JSON object as sent by the client.
    pub arguments: &'a [u8],
}

/// A condition could not be evaluated, which denies the call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConditionError {
    /// Evaluation failed on these arguments.
    #[error("{0}")]
    Failed(String),
    /// The cost exceeds the bound of every condition.
    #[error("it takes {cost} units of work on these arguments, of {cost_max} at most")]
    TooCostly {
        /// The estimated cost.
        cost: u64,
        /// The bound.
        cost_max: u64,
    },
    /// The cost exceeds [`EvaluationEffort::Quick`].
    #[error("it takes too long to be decided at once")]
    NeedsFullEffort,
}

/// Bound on the work of an evaluation on the current thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationEffort {
    /// Cheap enough for a thread that serves requests.
    Quick,
    /// Up to the bound of every condition.
    Full,
}

/// Decides whether a call with these arguments is allowed.
pub trait Condition: fmt::Debug + Send + Sync {
    /// Returns the source text.
    fn source_text(&self) -> &str;

    /// Evaluates the condition.
    ///
    /// # Errors
    /// Evaluation failed: an argument is missing or of a different type, too expensive to inspect,
    /// or the cost exceeds `effort`.
    fn evaluate(
        &self,
        facts: &ConditionInput<'_>,
        effort: EvaluationEffort,
    ) -> Result<bool, ConditionError>;
}

/// A condition with the features it covers.
#[derive(Clone, Debug)]
pub struct ConditionRule {
    /// The covered features; all kinds if the pattern has no kind.
    pub pattern: FeaturePattern,
    /// The condition on the arguments.
    pub condition: std::sync::Arc<dyn Condition>,
}
