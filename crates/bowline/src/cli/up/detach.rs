//! `up --detach`: starts a gateway in a separate session, and returns once the gateway serves.

use std::ffi::OsString;

use crate::cli::gateway_finder::GatewayFinder;
use crate::cli::stdio::gateway_starter::{self, GatewayStarter};
use crate::cli::{CliExit, CliFailure, CommandContext, UpArgs, api_client};
use bowline_config::state;

/// Starts the gateway; fails if a gateway is already running.
pub(super) fn run_detached(
    up: &UpArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let finder = GatewayFinder::new(context);
    if finder.has_explicit_url() {
        let message = "--detach starts a gateway on this machine, not the one of an address";
        return Err(CliFailure::usage(message).with_hint("leave out --url, and unset BOWLINE_URL"));
    }
    let directory = state::locate_state_dir(context.global.state.as_deref(), &context.env)?;
    let starter = GatewayStarter::with_arguments(context, gateway_arguments(up))?;
    api_client::create_runtime()?.block_on(async {
        if let Some(gateway) = gateway_starter::find_listening(&finder).await? {
            let message = format!("bowline is already running ({})", gateway.url);
            return Err(CliFailure::new(
                CliExit::Unexpected,
                "already_running",
                message,
            ));
        }
        gateway_starter::ensure_gateway(&finder, &starter).await
    })?;
    let run = state::read_run(&directory)?;
    let run = run.ok_or_else(|| CliFailure::unexpected("the gateway has gone again"))?;
    let stop = format!("kill {}", run.pid);
    super::print_ready(&run, up, context, &stop)?;
    Ok(CliExit::Ok)
}

/// Returns the arguments of the background gateway.
fn gateway_arguments(up: &UpArgs) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["up".into(), "--detached".into()];
    if up.demo {
        args.push("--demo".into());
    }
    if up.insecure_no_auth {
        args.push("--insecure-no-auth".into());
    }
    for address in &up.listen {
        args.extend(["--listen".into(), address.to_string().into()]);
    }
    args
}
