//! What a server offered when it was last seen, so that it can be listed before it is started.

use std::fmt;

use bowline_core::era::Era;
use bowline_core::hex::hex;
use bowline_wire::object;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::catalog::{ListKind, Pages, listing};
use crate::spec::Reach;

/// What a server said when it last served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its result of `initialize`.
    pub initialize: Bytes,
    /// Its lists, page by page.
    pub pages: Pages,
}

impl Manifest {
    /// Returns the era that the server spoke: only the modern one lists its revisions.
    #[must_use]
    pub fn era(&self) -> Era {
        match object::field(&self.initialize, "supportedVersions") {
            Some(_) => Era::Modern,
            None => Era::Legacy,
        }
    }

    /// Takes in lists that were read since; the others stay as they were.
    pub fn learn(&mut self, initialize: &Bytes, pages: &Pages) {
        self.initialize = initialize.clone();
        for kind in ListKind::ALL {
            if let Some(read) = pages.get(kind) {
                // How long it may be kept is for the living to say.
                let plain = read.iter().map(|page| listing::plain(kind, page));
                *self.pages.get_mut(kind) = Some(plain.collect());
            }
        }
    }
}

/// Returns a digest of how a server is reached: what another program, or the same with other
/// arguments, offered says nothing of this one. The values of its environment do not count, since
/// they are often secrets that change.
#[must_use]
pub fn digest(reach: &Reach) -> String {
    let mut hash = Sha256::new();
    // The length of each part keeps two from being taken for one.
    let mut part = |kind: u8, bytes: &[u8]| {
        hash.update([kind]);
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    match reach {
        Reach::Child(child) => {
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
        Reach::Placed(placed) => {
            part(b'x', placed.executor.as_bytes());
            part(b's', placed.server.as_bytes());
        }
        Reach::Remote(remote) => part(b'u', remote.url.to_string().as_bytes()),
        // It is another one with each start of the program.
        Reach::InProcess(_) => part(b'p', b""),
        Reach::Peer(peer) => {
            part(b'w', peer.remote.name().as_bytes());
            part(b's', peer.server.as_bytes());
        }
    }
    hex(&hash.finalize())
}

/// Keeps manifests between lives of the gateway.
///
/// Neither function waits long: what is slow goes on behind them.
pub trait Manifests: fmt::Debug + Send + Sync {
    /// Returns what was kept for the server, if it was kept under the same digest of its spec.
    fn load(&self, server: &str, digest: &str) -> Option<Manifest>;
    /// Keeps it in place of what was kept before.
    fn save(&self, server: &str, digest: &str, manifest: Manifest);
    /// Keeps nothing of the server any more.
    fn forget(&self, server: &str);
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgetful;

impl Manifests for Forgetful {
    fn load(&self, _server: &str, _digest: &str) -> Option<Manifest> {
        None
    }

    fn save(&self, _server: &str, _digest: &str, _manifest: Manifest) {}

    fn forget(&self, _server: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ChildSpec;

    fn child(command: &str, args: &[&str], env: &[(&str, &str)]) -> String {
        digest(&Reach::Child(ChildSpec {
            args: args.iter().map(Into::into).collect(),
            env: env
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            ..ChildSpec::new(command)
        }))
    }

    #[test]
    fn a_digest_tells_programs_apart_and_not_their_secrets() {
        let one = child("npx", &["-y", "pkg"], &[("KEY", "a"), ("B", "b")]);
        assert_eq!(one.len(), 64);
        assert_eq!(
            one,
            child("npx", &["-y", "pkg"], &[("B", "other"), ("KEY", "c")])
        );
        for other in [
            child("npx", &["-y", "pkg2"], &[("KEY", "a"), ("B", "b")]),
            child("npx", &["-ypkg"], &[("KEY", "a"), ("B", "b")]),
            child("npx", &["-y", "pkg"], &[("KEY", "a")]),
            child("uvx", &["-y", "pkg"], &[("KEY", "a"), ("B", "b")]),
        ] {
            assert_ne!(one, other);
        }
    }
}
