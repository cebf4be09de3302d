//! Lists of a server from its last run, shown before it starts.

use std::fmt;

use bowline_core::era::Era;
use bowline_core::hex::to_hex;
use bowline_wire::object;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::catalog::{ListKind, ListPages, rendered_list};
use crate::spec::ServerTransport;

/// The lists of a server when last ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerManifest {
    /// The `initialize` result.
    pub initialize: Bytes,
    /// The lists, page by page.
    pub pages: ListPages,
}

impl ServerManifest {
    /// Returns the server's era: only modern servers list their revisions.
    #[must_use]
    pub fn era(&self) -> Era {
        match object::field(&self.initialize, "supportedVersions") {
            Some(_) => Era::Modern,
            None => Era::Legacy,
        }
    }

    /// Merges newly read lists; unread lists stay.
    pub fn merge_lists(&mut self, initialize: &Bytes, pages: &ListPages) {
        self.initialize = initialize.clone();
        for kind in ListKind::ALL {
            if let Some(read) = pages.get(kind) {
                // A cache hint is valid only on a current link.
                let plain = read
                    .iter()
                    .map(|page| rendered_list::to_legacy_page(kind, page));
                *self.pages.get_mut(kind) = Some(plain.collect());
            }
        }
    }
}

/// Returns a digest of a server's transport: lists of a different program or of different arguments
/// must not be reused. Environment values are excluded, since they are often rotating secrets.
#[must_use]
pub fn transport_digest(reach: &ServerTransport) -> String {
    let mut hash = Sha256::new();
    // Length-prefixed, so that concatenations stay unambiguous.
    let mut part = |kind: u8, bytes: &[u8]| {
        hash.update([kind]);
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    match reach {
        ServerTransport::Child(child) => {
            part(b'c', child.command.as_encoded_bytes());
            for argument in &child.args {
                part(b'a', argument.as_encoded_bytes());
            }
            if let Some(cwd) = &child.cwd {
                part(b'd', cwd.as_os_str().as_encoded_bytes());
            }
            let mut names: Vec<_> = child.env.iter().map(|(name, _)| name).collect();
            names.sort();
            for name in names {
                part(b'e', name.as_encoded_bytes());
            }
        }
        ServerTransport::Executor(placed) => {
            part(b'x', placed.executor.as_bytes());
            part(b's', placed.server.as_bytes());
        }
        ServerTransport::Remote(remote) => part(b'u', remote.url.to_string().as_bytes()),
        // Different with each start of the program.
        ServerTransport::InProcess(_) => part(b'p', b""),
        ServerTransport::Peer(peer) => {
            part(b'w', peer.connector.peer_name().as_bytes());
            part(b's', peer.server.as_bytes());
        }
    }
    to_hex(&hash.finalize())
}

/// Stores manifests across restarts.
///
/// Neither method blocks for long: slow work continues in the background.
pub trait ManifestStore: fmt::Debug + Send + Sync {
    /// Returns the stored manifest, if stored under the same spec digest.
    fn load(&self, server: &str, digest: &str) -> Option<ServerManifest>;
    /// Replaces the stored manifest.
    fn save(&self, server: &str, digest: &str, manifest: ServerManifest);
    /// Deletes the stored manifest.
    fn forget(&self, server: &str);
}

/// Stores nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullManifestStore;

impl ManifestStore for NullManifestStore {
    fn load(&self, _server: &str, _digest: &str) -> Option<ServerManifest> {
        None
    }

    fn save(&self, _server: &str, _digest: &str, _manifest: ServerManifest) {}

    fn forget(&self, _server: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ChildSpec;

    fn child_digest(command: &str, args: &[&str], env: &[(&str, &str)]) -> String {
        transport_digest(&ServerTransport::Child(ChildSpec {
            args: args.iter().map(Into::into).collect(),
            env: env
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            ..ChildSpec::new(command)
        }))
    }

    #[test]
    fn digest_covers_program_but_not_env_values() {
        let one = child_digest("npx", &["-y", "pkg"], &[("KEY", "a"), ("B", "b")]);
        assert_eq!(one.len(), 64);
        assert_eq!(
            one,
            child_digest("npx", &["-y", "pkg"], &[("B", "other"), ("KEY", "c")])
        );
        for other in [
            child_digest("npx", &["-y", "pkg2"], &[("KEY", "a"), ("B", "b")]),
            child_digest("npx", &["-ypkg"], &[("KEY", "a"), ("B", "b")]),
            child_digest("npx", &["-y", "pkg"], &[("KEY", "a")]),
            child_digest("uvx", &["-y", "pkg"], &[("KEY", "a"), ("B", "b")]),
        ] {
            assert_ne!(one, other);
        }
    }
}
