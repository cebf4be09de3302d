//! `up --detach`: starts a gateway in a session of its own, and returns when it serves.

use std::ffi::OsString;

use crate::cli::daemon::Finder;
use crate::cli::stdio::start::{self, Starter};
use crate::cli::{Context, Exit, Failure, Up, client};
use crate::state;

/// Starts the gateway; fails where one runs already.
pub(super) fn run(up: &Up, context: &mut Context) -> Result<Exit, Failure> {
    let finder = Finder::new(context);
    if finder.is_fixed() {
        let message = "--detach starts a gateway on this machine, not the one of an address";
        return Err(Failure::usage(message).hint("leave out --url, and unset BOWLINE_URL"));
    }
    let directory = state::locate(context.global.state.as_deref(), &context.env)?;
    let starter = Starter::with(context, arguments(up))?;
    client::runtime()?.block_on(async {
        if let Some(daemon) = start::listening(&finder).await? {
            let message = format!("bowline is already running ({})", daemon.url);
            return Err(Failure::new(Exit::Unexpected, "already_running", message));
        }
        start::ensure(&finder, &starter).await
    })?;
    let run = state::read_run(&directory)?;
    let run = run.ok_or_else(|| Failure::unexpected("the gateway has gone again"))?;
    let stop = format!("kill {}", run.pid);
    super::announce(&run, up, (context, &stop))?;
    Ok(Exit::Ok)
}

/// What the gateway itself is started with.
fn arguments(up: &Up) -> Vec<OsString> {
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
