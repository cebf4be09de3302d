//! Remembers the era of each server, to choose the handshake.
//!
//! For a process this saves time: both eras are tried on the pipes of the same process, and a start
//! never spawns a second process. Only a process that exits at the first message gets a different
//! handshake at its next start, which counts against the restart budget.

use std::collections::HashMap;
use std::sync::Mutex;

use bowline_core::era::{Era, EraSetting};
use bowline_core::sync::lock;
use bowline_link::{EraNegotiation, LinkConnectError, LinkError, LinkExit};

use crate::manifest::transport_digest;
use crate::spec::ServerSpec;
use crate::supervisor::DialedLink;

/// Maximum number of entries; more than any configuration has.
const ENTRIES_MAX: usize = 4_096;

/// Consecutive exits at `initialize` before `server/discover` is tried first. A start failing for a
/// different reason is no hint of the modern era.
const EXITS_MAX: u32 = 2;

/// Handshake choice per server, by the digest of its entry: a changed command or argument gives a
/// different entry.
#[derive(Debug, Default)]
pub struct EraCache {
    entries: Mutex<HashMap<String, EraEntry>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EraEntry {
    opening: EraNegotiation,
    /// Consecutive exits at `initialize`.
    exits: u32,
}

impl EraCache {
    /// Returns the handshake to use.
    pub(super) fn opening(&self, spec: &ServerSpec) -> EraNegotiation {
        match spec.era {
            EraSetting::Only(era) => EraNegotiation::Only(era),
            EraSetting::Auto => self.entry(spec).opening,
        }
    }

    /// Restores the era of an earlier run, unless this run knows more.
    pub(super) fn restore(&self, spec: &ServerSpec, era: Era) {
        if self.entry(spec) == EraEntry::default() {
            let opening = EraNegotiation::Remembered(era);
            self.store_entry(spec, EraEntry { opening, exits: 0 });
        }
    }

    /// Learns from a handshake. Returns the handshake to retry at once, if the remembered era was
    /// wrong and a retry costs no process.
    pub(super) fn record_handshake(
        &self,
        spec: &ServerSpec,
        opening: EraNegotiation,
        dialled: &Result<DialedLink, LinkConnectError>,
    ) -> Option<EraNegotiation> {
        if let EraNegotiation::Only(_) = opening {
            return None;
        }
        let exits = self.entry(spec).exits;
        let next = match dialled {
            Ok((link, _)) => EraEntry {
                opening: EraNegotiation::Remembered(link.era()),
                // The next process of such a server is likely to exit as well.
                exits: match opening {
                    EraNegotiation::DiscoverFirst => EXITS_MAX - 1,
                    _ => 0,
                },
            },
            Err(error) if spec.transport.is_process() => next_process_entry(opening, exits, error)?,
            Err(error) => {
                let doubt = era_doubt(error).filter(|_| opening != EraNegotiation::Unknown)?;
                self.store_entry(spec, EraEntry::default());
                return (doubt == EraDoubt::Certain).then_some(EraNegotiation::Unknown);
            }
        };
        self.store_entry(spec, next);
        None
    }

    fn entry(&self, spec: &ServerSpec) -> EraEntry {
        let entry = lock(&self.entries)
            .get(&transport_digest(&spec.transport))
            .copied();
        entry.unwrap_or_default()
    }

    fn store_entry(&self, spec: &ServerSpec, entry: EraEntry) {
        let (mut entries, key) = (lock(&self.entries), transport_digest(&spec.transport));
        if entry == EraEntry::default() {
            entries.remove(&key);
        } else if entries.len() < ENTRIES_MAX || entries.contains_key(&key) {
            entries.insert(key, entry);
        }
    }
}

/// Returns the entry after a failed handshake of a process.
fn next_process_entry(
    opening: EraNegotiation,
    exits: u32,
    error: &LinkConnectError,
) -> Option<EraEntry> {
    let unknown = EraEntry::default();
    match error {
        // No information about the process.
        LinkConnectError::Spawn { .. }
        | LinkConnectError::ProgramNotFound { .. }
        | LinkConnectError::ExitedBeforeHandshake {
            exit: LinkExit::Away,
            ..
        } => None,
        // A modern server may exit at `initialize`.
        LinkConnectError::ExitedBeforeHandshake { .. } => match opening {
            EraNegotiation::DiscoverFirst => Some(unknown),
            _ if exits + 1 < EXITS_MAX => Some(EraEntry {
                exits: exits + 1,
                ..unknown
            }),
            _ => Some(EraEntry {
                opening: EraNegotiation::DiscoverFirst,
                exits: 0,
            }),
        },
        // A legacy server may be confused by `server/discover`.
        LinkConnectError::HandshakeTimeout { .. } if opening == EraNegotiation::Unknown => {
            Some(EraEntry {
                opening: EraNegotiation::Remembered(Era::Legacy),
                exits: 0,
            })
        }
        _ => Some(unknown),
    }
}

/// How strongly a failure contradicts the remembered era of an HTTP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EraDoubt {
    /// Possible contradiction.
    Possible,
    /// The server is up and does not speak this era.
    Certain,
}

fn era_doubt(error: &LinkConnectError) -> Option<EraDoubt> {
    match error {
        LinkConnectError::HandshakeRefused { .. }
        | LinkConnectError::UnsupportedRevision { .. }
        | LinkConnectError::BadHandshake { .. } => Some(EraDoubt::Certain),
        LinkConnectError::ExitedBeforeHandshake { .. }
        | LinkConnectError::HandshakeTimeout { .. } => Some(EraDoubt::Possible),
        LinkConnectError::Spawn { .. } | LinkConnectError::ProgramNotFound { .. } => None,
        LinkConnectError::Refused { source, .. } => match source {
            LinkError::Http { status, .. } if *status < 500 => Some(EraDoubt::Certain),
            LinkError::ContentType { .. } | LinkError::BadResponse(_) => Some(EraDoubt::Certain),
            // An outage gives no information about the era.
            _ => None,
        },
    }
}
