//! Notices that a secret is another one, and has its servers take it up.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use tokio::sync::watch;

use super::command::Tool;
use super::slot::Why;
use super::{Sources, Vault};
use crate::config::Template;
use crate::edge::Edge;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What one server takes from places that may change.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// The server.
    pub server: Arc<str>,
    /// What is sent with each request: the server goes on, and is asked for its lists again.
    pub sent: Texts,
    /// What the server is started with, or lacks in order to start: the file is applied again.
    pub started: Texts,
}

/// Texts, and a digest of what they last came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    texts: Vec<Template>,
    digest: u64,
}

impl Texts {
    /// Looks at those whose value can change.
    pub(crate) fn of(texts: impl IntoIterator<Item = Template>) -> Self {
        let texts = texts.into_iter().filter(|text| !text.is_fixed());
        let mut this = Self {
            texts: texts.collect(),
            digest: 0,
        };
        this.look();
        this
    }

    /// Whether there is nothing to look at.
    pub(crate) const fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Looks, and says whether they come to something else than before.
    fn look(&mut self) -> bool {
        let mut mixer = DefaultHasher::new();
        for text in &self.texts {
            text.value().hash(&mut mixer);
        }
        let before = std::mem::replace(&mut self.digest, mixer.finish());
        before != self.digest
    }

    fn due(&self) -> Vec<Tool> {
        self.texts.iter().flat_map(Template::due).collect()
    }
}

/// What a look came to.
#[derive(Debug, Default)]
struct Seen {
    /// Servers that are sent something else now.
    sent: Vec<Arc<str>>,
    /// Whether a server is to be started with something else.
    is_started_otherwise: bool,
    /// Programs that are to be run again.
    due: Vec<Tool>,
}

impl Vault {
    /// Looks at these from now on.
    pub(crate) fn watch(&self, watched: &[Watched]) {
        *lock(&self.watched) = watched.to_vec();
        // Who looks may rest.
        self.ring();
    }

    fn is_watching(&self) -> bool {
        !lock(&self.watched).is_empty()
    }

    /// Looks at all of them. Files may be slow, so it is done where nobody waits.
    fn look(&self) -> Seen {
        let mut watched = lock(&self.watched).clone();
        let mut seen = Seen::default();
        for one in &mut watched {
            seen.due.extend(one.sent.due());
            seen.due.extend(one.started.due());
            seen.is_started_otherwise |= one.started.look();
            if one.sent.look() {
                seen.sent.push(Arc::clone(&one.server));
            }
        }
        // Another configuration may have come meanwhile; then it was looked at when it was read.
        let mut now = lock(&self.watched);
        let is_same = now.len() == watched.len()
            && (now.iter().zip(&watched)).all(|(now, then)| now.is_of_same(then));
        if is_same {
            *now = watched;
        }
        seen
    }

    /// Runs programs whose output has become old.
    fn renew(&self, due: &[Tool]) {
        for tool in due {
            // Why it failed is logged there.
            let _fetched = self.fetch(tool, Why::Age);
        }
    }
}

impl Watched {
    /// Whether there is nothing to look at.
    pub(crate) const fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.started.is_empty()
    }

    /// The server was left out for want of something, so whatever changes may let it start.
    pub(crate) fn needs_all_to_start(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        self.started = Texts::of(sent.texts.into_iter().chain(self.started.texts.drain(..)));
    }

    fn is_of_same(&self, other: &Self) -> bool {
        self.server == other.server
            && self.sent.texts == other.sent.texts
            && self.started.texts == other.started.texts
    }
}

/// Follows the secrets of the configuration in force until told to stop.
pub(crate) async fn follow(edge: Arc<Edge>, sources: Sources, mut stop: watch::Receiver<bool>) {
    let vault = sources.vault();
    tokio::select! {
        () = look(&edge, vault) => {}
        _ = stop.changed() => {}
    }
}

async fn look(edge: &Edge, vault: &Arc<Vault>) {
    loop {
        let pause = async {
            if vault.is_watching() {
                tokio::time::sleep(LOOK_EVERY).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = vault.changed.notified() => {}
            () = pause => {}
        }
        let looker = Arc::clone(vault);
        let looked = tokio::task::spawn_blocking(move || looker.look());
        let Ok(seen) = looked.await else {
            continue;
        };
        for server in &seen.sent {
            tracing::info!(%server, "its credentials changed");
            edge.host.credentials_changed(server).await;
        }
        if seen.is_started_otherwise {
            tracing::info!("a secret that servers are started with changed");
            // There is a file, and whoever wants to know of the outcome listens.
            let _told = edge.reloader.reload(&edge.host).await;
        }
        if !seen.due.is_empty() {
            renew(edge, vault, seen.due);
        }
    }
}

/// Runs programs again whose output has become old, where nothing else follows it.
pub(crate) async fn keep_fresh(sources: Sources, texts: Vec<Template>) {
    let vault = sources.vault();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let due: Vec<_> = texts.iter().flat_map(Template::due).collect();
        if !due.is_empty() {
            let vault = Arc::clone(vault);
            // A failure to join is a failure to run, and it is due again then.
            let _ran = tokio::task::spawn_blocking(move || vault.renew(&due)).await;
        }
    }
}

/// Runs programs beside the rest: one that hangs must not keep a change from being noticed.
fn renew(edge: &Edge, vault: &Arc<Vault>, due: Vec<Tool>) {
    let vault = Arc::clone(vault);
    edge.host.tasks().spawn("secrets", async move {
        // A failure to join is a failure to run, and it is due again then.
        let _ran = tokio::task::spawn_blocking(move || vault.renew(&due)).await;
    });
}
