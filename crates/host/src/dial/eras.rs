//! Remembers which era each server spoke, so that it is met in that one.
//!
//! For a process the memory saves a wait: both eras are tried on the pipes of one process, and a
//! start never makes a second one. Only a process that ends at the first message is met in another
//! way at its next start, which the restart budget counts as any other.

use std::collections::HashMap;
use std::sync::Mutex;

use bowline_core::era::{Era, Speaks};
use bowline_core::sync::lock;
use bowline_link::{ConnectError, Exit, LinkError, Opening};

use crate::manifest::digest;
use crate::spec::ServerSpec;
use crate::supervisor::Dialled;

/// Entries that are remembered; a configuration has not so many.
const ENTRIES_MAX: usize = 4_096;

/// Processes in a row that end at `initialize` before one is met with `server/discover` first. A
/// start that fails for another reason is no reason to speak the modern era.
const EXITS_MAX: u32 = 2;

/// How servers are to be met, by the digest of their entries: another command, or other arguments,
/// is another entry.
#[derive(Debug, Default)]
pub struct Eras {
    entries: Mutex<HashMap<String, Entry>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    opening: Opening,
    /// Processes in a row that ended at `initialize`.
    exits: u32,
}

impl Eras {
    /// Returns how a server is to be met.
    pub(super) fn opening(&self, spec: &ServerSpec) -> Opening {
        match spec.speaks {
            Speaks::Only(era) => Opening::Only(era),
            Speaks::Auto => self.entry(spec).opening,
        }
    }

    /// Takes in what was kept from a former life, unless this one knows more.
    pub(super) fn recall(&self, spec: &ServerSpec, era: Era) {
        if self.entry(spec) == Entry::default() {
            let opening = Opening::Remembered(era);
            self.remember(spec, Entry { opening, exits: 0 });
        }
    }

    /// Learns from how a server was met. Returns how it is to be met at once, where what was
    /// remembered of it turned out to be wrong and another try costs no process.
    pub(super) fn learn(
        &self,
        spec: &ServerSpec,
        opening: Opening,
        dialled: &Result<Dialled, ConnectError>,
    ) -> Option<Opening> {
        if let Opening::Only(_) = opening {
            return None;
        }
        let exits = self.entry(spec).exits;
        let next = match dialled {
            Ok((link, _)) => Entry {
                opening: Opening::Remembered(link.era()),
                // The next process of such a server is likely to end as well.
                exits: match opening {
                    Opening::DiscoverFirst => EXITS_MAX - 1,
                    _ => 0,
                },
            },
            Err(error) if spec.reach.is_process() => next_process(opening, exits, error)?,
            Err(error) => {
                let doubt = doubt(error).filter(|_| opening != Opening::Unknown)?;
                self.remember(spec, Entry::default());
                return (doubt == Doubt::Certain).then_some(Opening::Unknown);
            }
        };
        self.remember(spec, next);
        None
    }

    fn entry(&self, spec: &ServerSpec) -> Entry {
        let entry = lock(&self.entries).get(&digest(&spec.reach)).copied();
        entry.unwrap_or_default()
    }

    fn remember(&self, spec: &ServerSpec, entry: Entry) {
        let (mut entries, key) = (lock(&self.entries), digest(&spec.reach));
        if entry == Entry::default() {
            entries.remove(&key);
        } else if entries.len() < ENTRIES_MAX || entries.contains_key(&key) {
            entries.insert(key, entry);
        }
    }
}

/// Returns how the next process of a server is met after one that was met in vain.
fn next_process(opening: Opening, exits: u32, error: &ConnectError) -> Option<Entry> {
    let unknown = Entry::default();
    match error {
        // Nothing of it was seen.
        ConnectError::Spawn { .. }
        | ConnectError::ProgramNotFound { .. }
        | ConnectError::ExitedBeforeHandshake {
            exit: Exit::Away, ..
        } => None,
        // A modern server may end at `initialize`.
        ConnectError::ExitedBeforeHandshake { .. } => match opening {
            Opening::DiscoverFirst => Some(unknown),
            _ if exits + 1 < EXITS_MAX => Some(Entry {
                exits: exits + 1,
                ..unknown
            }),
            _ => Some(Entry {
                opening: Opening::DiscoverFirst,
                exits: 0,
            }),
        },
        // A legacy server may be confused by `server/discover`.
        ConnectError::HandshakeTimeout { .. } if opening == Opening::Unknown => Some(Entry {
            opening: Opening::Remembered(Era::Legacy),
            exits: 0,
        }),
        _ => Some(unknown),
    }
}

/// How much a failure says against what was remembered of a server at an address.
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
