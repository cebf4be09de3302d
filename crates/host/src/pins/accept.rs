//! A person approves what definitions are now.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::pins::{Accepted, Hash, PinKind, Pins as Machine, Unaccepted};
use bowline_core::sync::lock;
use thiserror::Error;

use super::{Kept, Pins, Trouble};
use crate::catalog::Offer;

/// A disk that does not answer in this time does not keep what it was given.
const SAVE_WAIT: Duration = Duration::from_secs(5);

/// Why nothing was accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AcceptError {
    /// No such entry was ever seen.
    #[error("server `{server}` never had a {} `{tool}`", kind.as_str())]
    Unknown {
        /// The server.
        server: Arc<str>,
        /// What it would be.
        kind: PinKind,
        /// Its name or URI.
        tool: Arc<str>,
    },
    /// The definition is another by now.
    #[error("the definition changed again since it was looked at")]
    Other {
        /// The hash of what it is now.
        now: Hash,
    },
    /// Nobody knows what was approved of the others.
    #[error("the pins of server `{server}` cannot be read; only all of them can be accepted")]
    Unreadable {
        /// The server.
        server: Arc<str>,
    },
    /// It could not be kept, so it does not count.
    #[error("{0}")]
    Unsaved(Arc<str>),
}

/// One entry that a person looked at.
#[derive(Clone, Copy, Debug)]
pub struct PinTarget<'a> {
    /// What it is.
    pub kind: PinKind,
    /// Its name or URI.
    pub name: &'a str,
    /// The hash that it must have, or have had before the last approval.
    pub hash: Option<&'a Hash>,
}

impl<'a> PinTarget<'a> {
    /// Returns the target that is a tool.
    #[must_use]
    pub const fn tool(name: &'a str, hash: Option<&'a Hash>) -> Self {
        Self {
            kind: PinKind::Tool,
            name,
            hash,
        }
    }
}

impl Pins {
    /// Approves one entry as it is now, or all of a server. Saved when this returns.
    pub(crate) async fn accept(
        &self,
        server: &Arc<str>,
        target: Option<PinTarget<'_>>,
        offer: Option<&Offer>,
    ) -> Result<Vec<Accepted>, AcceptError> {
        let turn = self.kept(server).turn;
        let _turn = turn.acquire().await;
        let Kept { pins, trouble, .. } = self.kept(server);
        let now_ms = self.clock.unix_ms();
        let mut next = Machine::clone(&pins);
        let accepted = match target {
            Some(_) if matches!(trouble, Some(Trouble::Unreadable(_))) => {
                return Err(AcceptError::Unreadable {
                    server: Arc::clone(server),
                });
            }
            Some(target) => {
                let PinTarget { kind, name, hash } = target;
                let accepted = next.accept((kind, name), hash, now_ms);
                let accepted = accepted.map_err(|error| unaccepted(server, target, &error))?;
                accepted.into_iter().collect()
            }
            None => {
                if let Some(offer) = offer {
                    next.make_room(|kind, name| offer.is_pinned(kind, name));
                    next.see(&self.sights(server, offer), now_ms);
                }
                next.accept_all(now_ms)
            }
        };
        if !accepted.is_empty() || trouble.is_some() {
            let pins = Arc::new(next);
            self.store_it(server, &pins)
                .await
                .map_err(AcceptError::Unsaved)?;
            self.put(server, pins, None);
        }
        for one in &accepted {
            tracing::info!(%server, kind = one.kind.as_str(), name = ?one.tool, "accepted");
            self.tell(server, Some((one.kind, &one.tool)), "accepted", None);
        }
        Ok(accepted)
    }

    /// Keeps what was seen. What cannot be kept counts all the same as long as we live, but is
    /// not relied on.
    pub(super) async fn save(&self, server: &Arc<str>, pins: Machine) -> Result<(), Trouble> {
        let pins = Arc::new(pins);
        let saved = self.store_it(server, &pins).await;
        let trouble = saved.err().map(Trouble::Unsaved);
        self.put(server, pins, trouble.clone());
        trouble.map_or(Ok(()), Err)
    }

    async fn store_it(&self, server: &Arc<str>, pins: &Arc<Machine>) -> Result<(), Arc<str>> {
        let save = self.store.save(server, Arc::clone(pins));
        match tokio::time::timeout(SAVE_WAIT, save).await {
            Ok(saved) => saved.map_err(|error| error.to_string().into()),
            Err(_) => Err("the pins cannot be kept: the disk does not answer".into()),
        }
    }

    fn put(&self, server: &Arc<str>, pins: Arc<Machine>, trouble: Option<Trouble>) {
        let mut servers = lock(&self.servers);
        if let Some(kept) = servers.get_mut(server) {
            kept.pins = pins;
            kept.trouble = trouble;
        }
    }
}

fn unaccepted(server: &Arc<str>, target: PinTarget<'_>, error: &Unaccepted) -> AcceptError {
    match error {
        Unaccepted::Unknown => AcceptError::Unknown {
            server: Arc::clone(server),
            kind: target.kind,
            tool: target.name.into(),
        },
        Unaccepted::Other { now } => AcceptError::Other { now: *now },
    }
}
