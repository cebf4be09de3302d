//! Error responses, the same on every route.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Body of every response with an error status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

/// An error. Clients branch on `code`; the other texts are for people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorBody {
    /// Stable word for the cause, such as `server_not_found`; the page is docs/errors/CODE.md.
    pub code: String,
    /// One clause about what failed.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Names similar to the one that was not found, most similar first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<String>,
    /// Further members, depending on the code. Failed calls: `class`, `execution` (`not_started`,
    /// `unknown`, `completed`), `origin`, `retry`, and `rpc` with the error object of a server. A
    /// refused config: `report` and `problems`.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}
