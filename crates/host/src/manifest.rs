//! What a server offered when it was last seen, so that it can be listed before it is started.

use std::fmt;

use bytes::Bytes;

use crate::catalog::Pages;

/// What a server said when it last served.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its result of `initialize`.
    pub initialize: Bytes,
    /// Its lists, page by page.
    pub pages: Pages,
}

/// Keeps manifests between lives of the gateway.
///
/// Neither function waits long: what is slow goes on behind them.
pub trait Manifests: fmt::Debug + Send + Sync {
    /// Returns what was kept for the server, if it was kept under the same digest of its spec.
    fn load(&self, server: &str, digest: &str) -> Option<Manifest>;
    /// Keeps it in place of what was kept before.
    fn save(&self, server: &str, digest: &str, manifest: Manifest);
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgetful;

impl Manifests for Forgetful {
    fn load(&self, _server: &str, _digest: &str) -> Option<Manifest> {
        None
    }

    fn save(&self, _server: &str, _digest: &str, _manifest: Manifest) {}
}
