//! Approval of current definitions by an operator.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::pins::{
    DefinitionHash, PinAcceptError, PinAcceptance, PinKind, ServerPins as Machine,
};
use bowline_core::sync::lock;
use thiserror::Error;

use super::{PinRegistry, PinTrouble, ServerPinState};
use crate::catalog::ServerCatalog;

/// Timeout of saving pins.
const SAVE_WAIT: Duration = Duration::from_secs(5);

/// Why pins were not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AcceptPinsError {
    /// Unknown item.
    #[error("server `{server}` never had a {} `{tool}`", kind.as_str())]
    Unknown {
        /// The server.
        server: Arc<str>,
        /// The kind.
        kind: PinKind,
        /// Name or URI.
        tool: Arc<str>,
    },
    /// The definition has changed meanwhile.
    #[error("the definition changed again since it was looked at")]
    Other {
        /// The hash of the current definition.
        now: DefinitionHash,
    },
    /// The pins of the other items are unknown.
    #[error("the pins of server `{server}` cannot be read; only all of them can be accepted")]
    Unreadable {
        /// The server.
        server: Arc<str>,
    },
    /// Saving failed, so the approval is void.
    #[error("{0}")]
    Unsaved(Arc<str>),
}

/// The item to approve.
#[derive(Clone, Copy, Debug)]
pub struct PinTarget<'a> {
    /// The kind.
    pub kind: PinKind,
    /// Name or URI.
    pub name: &'a str,
    /// The required current hash, or the hash before the last approval.
    pub hash: Option<&'a DefinitionHash>,
}

impl<'a> PinTarget<'a> {
    /// Creates the target of a tool.
    #[must_use]
    pub const fn tool(name: &'a str, hash: Option<&'a DefinitionHash>) -> Self {
        Self {
            kind: PinKind::Tool,
            name,
            hash,
        }
    }
}

impl PinRegistry {
    /// Approves the current definition of an item, or of all items of a server. Saved on return.
    pub async fn accept_pins(
        &self,
        server: &Arc<str>,
        target: Option<PinTarget<'_>>,
        offer: Option<&ServerCatalog>,
    ) -> Result<Vec<PinAcceptance>, AcceptPinsError> {
        let update_permit = self.server_pins(server).update_permit;
        let _permit = update_permit.acquire().await;
        let ServerPinState { pins, trouble, .. } = self.server_pins(server);
        let now_ms = self.clock.unix_ms();
        let mut next = Machine::clone(&pins);
        let accepted = match target {
            Some(_) if matches!(trouble, Some(PinTrouble::Unreadable(_))) => {
                return Err(AcceptPinsError::Unreadable {
                    server: Arc::clone(server),
                });
            }
            Some(target) => {
                let PinTarget { kind, name, hash } = target;
                let accepted = next.accept_definition(kind, name, hash, now_ms);
                let accepted = accepted.map_err(|error| to_accept_error(server, target, &error))?;
                accepted.into_iter().collect()
            }
            None => {
                if let Some(offer) = offer {
                    next.evict_unlisted(|kind, name| offer.has_pin_key(kind, name));
                    next.observe_list(&self.listed_definitions(server, offer), now_ms);
                }
                next.accept_all(now_ms)
            }
        };
        if !accepted.is_empty() || trouble.is_some() {
            let pins = Arc::new(next);
            self.write_to_store(server, &pins)
                .await
                .map_err(AcceptPinsError::Unsaved)?;
            self.set_pins(server, pins, None);
        }
        for one in &accepted {
            tracing::info!(%server, kind = one.kind.as_str(), name = ?one.name, "pin accepted");
            self.emit_event(server, Some((one.kind, &one.name)), "accepted", None);
        }
        Ok(accepted)
    }

    /// Saves pins. Unsaved pins stay in effect for this process, but are marked as unreliable.
    pub(super) async fn save_pins(
        &self,
        server: &Arc<str>,
        pins: Machine,
    ) -> Result<(), PinTrouble> {
        let pins = Arc::new(pins);
        let saved = self.write_to_store(server, &pins).await;
        let trouble = saved.err().map(PinTrouble::Unsaved);
        self.set_pins(server, pins, trouble.clone());
        trouble.map_or(Ok(()), Err)
    }

    async fn write_to_store(&self, server: &Arc<str>, pins: &Arc<Machine>) -> Result<(), Arc<str>> {
        let save = self.store.save(server, Arc::clone(pins));
        match tokio::time::timeout(SAVE_WAIT, save).await {
            Ok(saved) => saved.map_err(|error| error.to_string().into()),
            Err(_) => Err("the pins cannot be kept: the disk does not answer".into()),
        }
    }

    fn set_pins(&self, server: &Arc<str>, pins: Arc<Machine>, trouble: Option<PinTrouble>) {
        let mut servers = lock(&self.servers);
        if let Some(state) = servers.get_mut(server) {
            state.pins = pins;
            state.trouble = trouble;
        }
    }
}

fn to_accept_error(
    server: &Arc<str>,
    target: PinTarget<'_>,
    error: &PinAcceptError,
) -> AcceptPinsError {
    match error {
        PinAcceptError::Unknown => AcceptPinsError::Unknown {
            server: Arc::clone(server),
            kind: target.kind,
            tool: target.name.into(),
        },
        PinAcceptError::Changed { current_hash } => AcceptPinsError::Other { now: *current_hash },
    }
}
