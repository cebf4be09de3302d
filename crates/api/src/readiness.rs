//! `/readyz`: readiness of the gateway.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;

/// Response of `GET /readyz`; 503 while the gateway stops, else 200.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReadyResponse {
    /// `ok`, `degraded`, or `stopping`. Callers without a credential never see `degraded`.
    pub status: Word,
    /// Failing servers with their states; absent for callers without a credential for the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<BTreeMap<Arc<str>, Word>>,
    /// Problem of the journal: `lane_stopped`, `full`, `poisoned` or `replaced`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<Word>,
    /// Problem of the audit trail: `degraded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<Word>,
}
