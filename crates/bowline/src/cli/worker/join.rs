//! `worker join`: runs a gateway in the foreground that has the tools of a hub.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::whole;
use bowline_core::policy::Pattern;
use bowline_host::broker::{ConnectError, Remote as _};
use bowline_link::websocket::DialError;
use http::Uri;

use crate::assemble::Gateway;
use crate::cli::args::Join;
use crate::cli::daemon::check_exposure;
use crate::cli::failure::name_gateway;
use crate::cli::stdio::{self, start::Starter};
use crate::cli::up::{self, Signals};
use crate::cli::{Context, Exit, Failure, Format, Out};
use crate::config::{self, Config};
use crate::edge::door::Auth;
use crate::secrets::Vault;
use crate::state::{self, State};
use crate::worker::{Joining, Worker};

/// How long the first connection may take before the worker serves without it.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// Where local agents reach a worker that was not told where.
const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Runs a worker until SIGINT or SIGTERM, or until its place at the hub is another's.
pub(super) fn run(join: &Join, context: &mut Context) -> Result<Exit, Failure> {
    let runtime = up::runtime()?;
    let outcome = runtime.block_on(serve(join, context));
    // A read of stdin cannot be given up; the process must not wait for it.
    runtime.shutdown_background();
    outcome
}

async fn serve(join: &Join, context: &mut Context) -> Result<Exit, Failure> {
    let mut signals = Signals::watch()?;
    let joining = joining(join, context)?;
    let directory = directory(&joining.hub, context)?;
    let config = config(join, &directory, context)?;
    let state = State::open(directory)?;
    let telemetry = up::telemetry(&context.env, &config.telemetry);
    let gateway = Gateway::start(config, state, Auth::Required, &context.env, telemetry).await?;
    let worker = Worker::join(gateway, &joining).await;
    let worker = worker.map_err(|error| failure(&joining.hub, &error))?;
    let ready = tokio::select! {
        ready = worker.ready(FIRST_WAIT) => ready,
        () = signals.stop() => {
            worker.stop().await;
            return Ok(Exit::Ok);
        }
    };
    if let Err(error) = &ready {
        if is_hopeless(error) {
            worker.stop().await;
            return Err(failure(&joining.hub, error));
        }
        let hub = &joining.hub;
        context.out.warning(&format!(
            "hub {hub} is away; it is tried again: {}",
            whole(error)
        ));
    }
    announce(join, &joining, &worker, context)?;
    let ended = attend(join, &worker, &mut signals, context).await;
    context.out.note("stopping");
    tokio::select! {
        () = worker.stop() => {}
        // Asked twice: do not wait for servers; their reapers see to them.
        () = signals.stop() => {}
    }
    match ended {
        None => Ok(Exit::Ok),
        Some(error) => Err(failure(&joining.hub, &error)),
    }
}

fn joining(join: &Join, context: &Context) -> Result<Joining, Failure> {
    check_exposure(join.hub.trim(), context.global.insecure)?;
    let given = context.global.token_file.clone();
    let token_file = given.or_else(|| context.env.path("BOWLINE_TOKEN_FILE"));
    let Some(token_file) = token_file else {
        let message = "a worker proves who it is by a token of its hub";
        let make = "on the hub: bowline token create --principal NAME --role ROLE";
        return Err(Failure::usage(message)
            .hint("add --token-file FILE")
            .hint(make));
    };
    // Looked at once before anything is started; it is read anew for every connection.
    state::read_token(&token_file)?;
    let mut offers = Vec::new();
    for text in &join.offer {
        let pattern = Pattern::parse(text)
            .map_err(|error| Failure::usage(format!("--offer `{text}` cannot be used: {error}")))?;
        offers.push(pattern);
    }
    Ok(Joining {
        hub: join.hub.clone(),
        token_file,
        offers,
    })
}

/// Returns where its state is: a place of its own for each hub, so that it stays out of the way of
/// `bowline up` and of workers of other hubs.
fn directory(hub: &str, context: &Context) -> Result<PathBuf, Failure> {
    let root = state::locate(context.global.state.as_deref(), &context.env)?;
    if context.global.state.is_some() {
        return Ok(root);
    }
    let wrong = || Failure::usage(format!("`{hub}` cannot be used: expected http://HOST:PORT"));
    let uri: Uri = hub.trim().parse().map_err(|_error| wrong())?;
    let host = uri.host().ok_or_else(wrong)?;
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') => c.to_ascii_lowercase(),
        _ => '_',
    };
    let host: String = host.chars().map(plain).collect();
    let usual = match uri.scheme_str() {
        Some("https" | "wss") => 443,
        _ => 80,
    };
    let port = uri.port_u16().unwrap_or(usual);
    Ok(root.join(format!("worker-{host}-{port}")))
}

fn config(
    join: &Join,
    directory: &std::path::Path,
    context: &mut Context,
) -> Result<Config, Failure> {
    // Without one it has no servers of its own, whatever stands in the usual place.
    let mut config = match context.config() {
        None => Config::default(),
        Some(path) => {
            let vault = Vault::of(directory, &context.env);
            config::load_with(Some(path), &context.env, &vault)?
        }
    };
    for warning in &config.warnings {
        context.out.warning(&warning.message);
    }
    for broken in &config.broken {
        context.out.warning(&up::left_out(broken));
    }
    config.listen_instead = match join.listen.as_slice() {
        [] => vec![LISTEN.into()],
        given => given.to_vec(),
    };
    Ok(config)
}

/// Says that the worker serves, and where.
fn announce(
    join: &Join,
    joining: &Joining,
    worker: &Worker,
    context: &mut Context,
) -> Result<(), Failure> {
    let run = &worker.gateway().run;
    let mailbox = worker.client().mailbox();
    let is_connected = worker.client().is_connected();
    let ready = serde_json::json!({
        "v": 1,
        "event": "ready",
        "mcp": run.mcp,
        "token_file": run.token_file,
        "pid": run.pid,
        "hub": joining.hub,
        "mailbox": mailbox,
        "connected": is_connected,
    });
    let hub = match &mailbox {
        Some(mailbox) => format!("{} as {mailbox}", joining.hub),
        None => format!("{} (away)", joining.hub),
    };
    let lines = [
        format!("bowline {} works for a hub", env!("CARGO_PKG_VERSION")),
        format!("  hub         {hub}"),
        format!("  endpoint    {}", run.mcp),
        format!("  token file  {}", run.token_file.display()),
        "  stop        Ctrl-C".to_owned(),
    ];
    let out = &mut context.out;
    match (join.stdio, out.format()) {
        (false, _) => out.result(&ready, |out| {
            lines.iter().try_for_each(|line| out.line(line))
        })?,
        // What goes to stdout is MCP.
        (true, Format::Json) => out.note(&ready.to_string()),
        (true, Format::Human) => lines.iter().for_each(|line| out.note(line)),
    }
    Ok(())
}

/// Serves until told to stop, and tells people what happens; returns why the hub wants no more of
/// us, if that was it.
async fn attend(
    join: &Join,
    worker: &Worker,
    signals: &mut Signals,
    context: &mut Context,
) -> Option<ConnectError> {
    let gateway = worker.gateway();
    let mut outcomes = gateway.reloader().outcomes();
    let mut hub = Standing::of(worker);
    let mut changes = worker.client().changes();
    let run = gateway.run.clone();
    let starter = Starter::new(context);
    let client = async {
        match (join.stdio, starter) {
            (true, Ok(starter)) => stdio::beside(&run, starter).await,
            (true, Err(failure)) => Err(failure),
            (false, _) => std::future::pending().await,
        }
    };
    let mut client = std::pin::pin!(client);
    let out = &mut context.out;
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return None,
            _ = signals.interrupt.recv() => return None,
            _ = signals.hangup.recv() => {
                // What comes of it is heard below.
                if let Err(error) = gateway.reloader().reload(gateway.host()).await {
                    out.note(&error.to_string());
                }
            }
            ended = &mut client => {
                if let Err(failure) = ended {
                    out.failure(&failure);
                }
                return None;
            }
            Ok(outcome) = outcomes.recv() => up::tell(&outcome, out),
            Ok(()) = changes.changed() => {
                if let Some(error) = worker.client().ended() {
                    return Some(error);
                }
                hub.tell(worker, out);
            }
        }
    }
}

/// How the connection stood when people were last told.
struct Standing {
    is_connected: bool,
}

impl Standing {
    fn of(worker: &Worker) -> Self {
        Self {
            is_connected: worker.client().is_connected(),
        }
    }

    fn tell(&mut self, worker: &Worker, out: &mut Out) {
        let is_connected = worker.client().is_connected();
        if std::mem::replace(&mut self.is_connected, is_connected) == is_connected {
            return;
        }
        let name: Arc<str> = worker.client().name();
        match worker.client().mailbox() {
            Some(mailbox) => out.note(&format!("hub {name}: connected as {mailbox}")),
            None => out.note(&format!("hub {name} is away; it is tried again")),
        }
    }
}

/// Whether trying again by itself is of no use.
fn is_hopeless(error: &ConnectError) -> bool {
    match error {
        ConnectError::Endpoint(_)
        | ConnectError::Credential(_)
        | ConnectError::Refused(_)
        | ConnectError::Fenced(_)
        | ConnectError::Closed
        | ConnectError::Dial(DialError::Token) => true,
        ConnectError::Dial(DialError::Refused { status }) => matches!(status, 401 | 403 | 404),
        ConnectError::Dial(_)
        | ConnectError::Ended(_)
        | ConnectError::Manifest(_)
        | ConnectError::Timeout => false,
    }
}

fn failure(hub: &str, error: &ConnectError) -> Failure {
    let said = whole(error);
    let (exit, code) = match error {
        ConnectError::Endpoint(_) => (Exit::Usage, "usage"),
        ConnectError::Credential(_)
        | ConnectError::Refused(_)
        | ConnectError::Dial(DialError::Token | DialError::Refused { status: 401 }) => {
            (Exit::Auth, "auth")
        }
        ConnectError::Dial(DialError::Refused { status: 403 }) => (Exit::Denied, "host_refused"),
        ConnectError::Fenced(_) => (Exit::Unexpected, "fenced"),
        ConnectError::Closed => (Exit::Unexpected, "unexpected"),
        ConnectError::Dial(_)
        | ConnectError::Ended(_)
        | ConnectError::Manifest(_)
        | ConnectError::Timeout => (Exit::Unreachable, "unreachable"),
    };
    let failure = Failure::new(exit, code, format!("cannot work for hub {hub}: {said}"));
    match error {
        ConnectError::Fenced(_) => failure
            .hint("two workers use one token, and the newer has its place")
            .hint("give each its own: bowline token create --principal NAME --role ROLE"),
        ConnectError::Dial(DialError::Refused { status: 404 }) => {
            failure.hint("there is no broker at that address")
        }
        ConnectError::Dial(DialError::Refused { status: 403 }) => failure.hint(name_gateway(hub)),
        _ if exit == Exit::Auth => {
            failure.hint("on the hub: bowline token create --principal NAME --role ROLE")
        }
        _ => failure,
    }
}
