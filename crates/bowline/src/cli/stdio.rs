//! `stdio`: serves an MCP client on stdin and stdout with a gateway that this command finds or
//! starts.

pub(super) mod gateway_starter;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bowline_config::state::RunRecord;
use bowline_core::BoxFuture;
use bowline_edge::GatewayAccess;
use bowline_edge::{GatewayLocator, StdioShim, forward_lines};
use tokio::signal::unix::{SignalKind, signal};

use self::gateway_starter::GatewayStarter;
use super::CommandContext;
use super::api_client::{self, percent_encode};
use super::failure::{CliExit, CliFailure};
use super::gateway_finder::GatewayFinder;

/// Finds the gateway of a shim, and starts a gateway if none runs.
#[derive(Debug)]
struct ShimGatewayLocator {
    finder: GatewayFinder,
    starter: GatewayStarter,
}

impl GatewayLocator for ShimGatewayLocator {
    fn reload_access(&self) -> Option<GatewayAccess> {
        self.finder.find_gateway().ok()
    }

    fn ensure_gateway(&self) -> BoxFuture<'_, Result<GatewayAccess, String>> {
        Box::pin(async {
            let found = gateway_starter::ensure_gateway(&self.finder, &self.starter).await;
            found.map_err(|failure| failure.message)
        })
    }
}

pub(super) fn run(
    server: Option<&str>,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let path = match server {
        Some(name) => format!("/servers/{}/mcp", percent_encode(name)),
        None => "/mcp".to_owned(),
    };
    let (finder, starter) = (GatewayFinder::new(context), GatewayStarter::new(context)?);
    let runtime = api_client::create_runtime()?;
    let outcome = runtime.block_on(async {
        let gateway = gateway_starter::ensure_gateway(&finder, &starter).await?;
        let shim = create_shim(ShimGatewayLocator { finder, starter }, path, gateway)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            () = forward_lines(shim.clone(), tokio::io::stdin(), tokio::io::stdout()) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shim.delete_session().await;
        Ok(CliExit::Ok)
    });
    // A blocking read of stdin cannot be cancelled; the process must not wait for stdin.
    runtime.shutdown_background();
    outcome
}

/// Serves a client on stdin and stdout with a gateway of this process, until stdin closes.
pub(super) async fn serve_own_gateway(
    run: &RunRecord,
    starter: GatewayStarter,
) -> Result<(), CliFailure> {
    let finder = GatewayFinder::for_run(run);
    let gateway = finder.find_gateway()?;
    let locator = ShimGatewayLocator { finder, starter };
    let shim = create_shim(locator, "/mcp".to_owned(), gateway)?;
    forward_lines(shim.clone(), tokio::io::stdin(), tokio::io::stdout()).await;
    shim.delete_session().await;
    Ok(())
}

fn create_shim(
    locator: ShimGatewayLocator,
    path: String,
    gateway: GatewayAccess,
) -> Result<Arc<StdioShim>, CliFailure> {
    let http = api_client::create_http()?;
    let shim = StdioShim::new(http, Box::new(locator), path, gateway);
    Ok(Arc::new(shim))
}
