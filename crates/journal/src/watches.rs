//! Watches on value changes, by key prefix.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::RevisionWatch;

/// Watches of a journal and the newest revision.
#[derive(Debug, Default)]
pub(crate) struct RevisionWatches {
    /// Newest revision of all values.
    revision: u64,
    senders: Vec<(Arc<str>, watch::Sender<u64>)>,
}

impl RevisionWatches {
    /// Returns an empty set of watches at this revision.
    #[cfg(feature = "sqlite")]
    pub(crate) const fn new(revision: u64) -> Self {
        let senders = Vec::new();
        Self { revision, senders }
    }

    /// Adds a watch on all keys with this prefix.
    pub(crate) fn add_watch(&mut self, prefix: &str) -> RevisionWatch {
        // Dropped watches are pruned here too, since their prefix may never change again.
        self.senders
            .retain(|(_, sender)| sender.receiver_count() > 0);
        let (sender, receiver) = watch::channel(self.revision);
        self.senders.push((prefix.into(), sender));
        receiver
    }

    /// Notifies the watches whose prefix matches the changed key.
    pub(crate) fn notify_change(&mut self, key: &str, revision: u64) {
        self.revision = revision;
        self.senders.retain(|(prefix, sender)| {
            if key.starts_with(&**prefix) {
                sender.send_replace(revision);
            }
            sender.receiver_count() > 0
        });
    }
}
