//! Remembers which requests were begun and what came of them, so that none runs twice.

use std::sync::Arc;

use bowline_journal::Journal;

/// A lane of the journal: a request that was begun is a message that is held, one that is done is
/// acknowledged with its answer. Begun and not done after a restart means: nobody knows.
#[derive(Clone, Debug)]
pub struct Ledger {
    journal: Arc<dyn Journal>,
}

impl Ledger {
    /// Keeps it in this journal.
    #[must_use]
    pub fn new(journal: Arc<dyn Journal>) -> Self {
        Self { journal }
    }

    /// Returns where it is kept.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.journal
    }
}
