//! Who wants to know of changed values.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Watch;

/// The watchers of a journal and the newest revision.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// The newest revision of all values.
    revision: u64,
    all: Vec<(Arc<str>, watch::Sender<u64>)>,
}

impl Watches {
    /// Nobody yet; the newest revision is this.
    pub(crate) const fn new(revision: u64) -> Self {
        let all = Vec::new();
        Self { revision, all }
    }

    /// Returns what sees every change of a value whose key begins so.
    pub(crate) fn add(&mut self, prefix: &str) -> Watch {
        // Those that nobody listens to any more go here too: a prefix may never change again.
        self.all.retain(|(_, sender)| sender.receiver_count() > 0);
        let (sender, receiver) = watch::channel(self.revision);
        self.all.push((prefix.into(), sender));
        receiver
    }

    /// Tells those whom it concerns that a value was changed.
    pub(crate) fn tell(&mut self, key: &str, revision: u64) {
        self.revision = revision;
        self.all.retain(|(prefix, sender)| {
            if key.starts_with(&**prefix) {
                sender.send_replace(revision);
            }
            sender.receiver_count() > 0
        });
    }
}
