//! Remembers how servers speak, so that each is asked once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::era::{Era, Speaks};
use bowline_core::sync::lock;
use bowline_link::{ConnectError, LinkError};

use crate::spec::ServerSpec;
use crate::supervisor::Dialled;

/// Servers of which it is remembered; there are not so many.
const SERVERS_MAX: usize = 4_096;

/// How servers were found to speak, by their names.
#[derive(Debug, Default)]
pub struct Eras {
    known: Mutex<HashMap<Arc<str>, Era>>,
}

/// How a server is to be met, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guess {
    pub(super) speaks: Speaks,
    /// Whether it is what was found before, and may be wrong by now.
    remembered: bool,
}

impl Eras {
    /// Returns how a server is to be met.
    pub(super) fn guess(&self, spec: &ServerSpec) -> Guess {
        let known = match spec.speaks {
            Speaks::Auto => lock(&self.known).get(&spec.name).copied(),
            Speaks::Only(_) => None,
        };
        Guess {
            speaks: known.map_or(spec.speaks, Speaks::Only),
            remembered: known.is_some(),
        }
    }

    /// Learns from how a server was met. Returns how it is to be met at once, where what was
    /// remembered of it turned out to be wrong.
    pub(super) fn learn(
        &self,
        spec: &ServerSpec,
        guess: Guess,
        dialled: &Result<Dialled, ConnectError>,
    ) -> Option<Guess> {
        match dialled {
            Ok((link, _)) if guess.speaks == Speaks::Auto => {
                self.remember(spec, link.era());
                None
            }
            // Perhaps the question is too much for it, so that the next process is not asked; one
            // that ends at once, asked or not, is not started twice the next time. Of a server at
            // an address it says nothing: that is an outage.
            Err(
                ConnectError::HandshakeTimeout { .. } | ConnectError::ExitedBeforeHandshake { .. },
            ) if guess.speaks == Speaks::Auto && spec.reach.is_process() => {
                self.remember(spec, Era::Legacy);
                None
            }
            Err(error) if guess.remembered => {
                let doubt = doubt(error)?;
                lock(&self.known).remove(&spec.name);
                (doubt == Doubt::Certain).then_some(Guess {
                    speaks: Speaks::Auto,
                    remembered: false,
                })
            }
            Ok(_) | Err(_) => None,
        }
    }

    fn remember(&self, spec: &ServerSpec, era: Era) {
        let mut known = lock(&self.known);
        if known.len() < SERVERS_MAX || known.contains_key(&spec.name) {
            known.insert(Arc::clone(&spec.name), era);
        }
    }
}

/// How much a failure says against what was remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// It may be that.
    Some,
    /// The server is there and does not speak so.
    Certain,
}

fn doubt(error: &ConnectError) -> Option<Doubt> {
    match error {
        ConnectError::HandshakeRefused { .. }
        | ConnectError::UnsupportedRevision { .. }
        | ConnectError::BadHandshake { .. } => Some(Doubt::Certain),
        ConnectError::ExitedBeforeHandshake { .. } | ConnectError::HandshakeTimeout { .. } => {
            Some(Doubt::Some)
        }
        ConnectError::Spawn { .. } | ConnectError::ProgramNotFound { .. } => None,
        ConnectError::Refused { source, .. } => match source {
            LinkError::Http { status, .. } if *status < 500 => Some(Doubt::Certain),
            LinkError::ContentType { .. } | LinkError::BadAnswer(_) => Some(Doubt::Certain),
            // An outage says nothing of how the server speaks when it is back.
            _ => None,
        },
    }
}
