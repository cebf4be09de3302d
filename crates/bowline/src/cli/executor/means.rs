//! What an executor is started with, by its command line and its config.

use std::path::PathBuf;
use std::sync::Arc;

use bowline_core::egress::Rule;
use bowline_host::executor::{Protocol, Servant, Standing, as_exec_server};
use bowline_host::ports::SystemClock;
use bowline_host::tasks::Tasks;

use crate::assemble::{AssembleError, Ground};
use crate::cli::args::Means;
use crate::cli::{Context, Failure, Out, up};
use crate::config::{self, Config, Reach};
use crate::secrets::Vault;
use crate::secrets::follow::keep_fresh;
use crate::telemetry::Telemetry;
use crate::{servant, state};

/// An executor that can be run.
pub(super) struct Ready {
    pub(super) servant: Servant,
    /// What it says of itself goes through this.
    pub(super) telemetry: Telemetry,
}

/// Returns an executor of this name.
pub(super) fn ready(
    (name, protocol): (&str, Protocol),
    means: &Means,
    context: &mut Context,
) -> Result<Ready, Failure> {
    if !bowline_core::name::is_server(name) {
        let message = format!("--name `{}` cannot be used", name.escape_debug());
        let form = "lower-case letters, digits and `-`, at most 32, not `-` first";
        return Err(Failure::usage(message).hint(form));
    }
    let mut rules = Vec::with_capacity(means.allow.len());
    for text in &means.allow {
        rules.push(rule(text)?);
    }
    let config = config(context)?;
    if config.servant.allow.is_empty() && config.servant.servers.is_empty() && rules.is_empty() {
        context
            .out
            .warning("no request can leave from here: nothing is allowed (--allow HOST:PORT)");
    }
    let telemetry = up::telemetry(&context.env, &config.telemetry);
    let own = std::env::current_exe().map_err(AssembleError::OwnPath)?;
    let state = state::locate(context.global.state.as_deref(), &context.env)?;
    let ground = Ground::new(own, &state);
    let offer = servant::offer(
        name,
        &config,
        &rules,
        (&ground, &context.env),
        &telemetry.secrets,
    );
    let offer = match protocol {
        Protocol::Bowline => offer,
        Protocol::ExecServer => as_exec_server(offer),
    };
    let (tasks, clock) = (Tasks::default(), Arc::new(SystemClock::start()));
    let secrets = config.servant.secrets.values();
    let texts: Vec<_> = secrets.map(|held| held.value.clone()).collect();
    tasks.spawn("secrets", keep_fresh(config.sources.clone(), texts));
    let servant = Servant::new(offer, tasks, clock);
    Ok(Ready { servant, telemetry })
}

/// Returns the file that `--token-file` names, if it does; it is looked at once.
pub(super) fn token_file(context: &Context) -> Result<Option<PathBuf>, Failure> {
    let given = context.global.token_file.clone();
    let file = given.or_else(|| context.env.path("BOWLINE_TOKEN_FILE"));
    if let Some(file) = &file {
        // It is read anew for every connection.
        state::read_token(file)?;
    }
    Ok(file)
}

/// Tells people how the connection stands.
pub(super) fn tell(standing: &Standing, other: &str, out: &mut Out) {
    match standing {
        Standing::Connected => out.note(&format!("{other}: connected")),
        Standing::Away(reason) => {
            out.note(&format!("{other} is away; it is tried again: {reason}"))
        }
        Standing::Refused { reason, .. } => {
            out.note(&format!(
                "{other} does not want us; it is tried again: {reason}"
            ));
        }
        Standing::Waiting | Standing::Closed => {}
    }
}

fn rule(text: &str) -> Result<Rule, Failure> {
    Rule::parse(text).map_err(|error| {
        let message = format!("--allow `{}` cannot be used: {error}", text.escape_debug());
        Failure::usage(message).hint("for instance --allow tracker.example:443")
    })
}

fn config(context: &mut Context) -> Result<Config, Failure> {
    // Without one it has no servers and secrets, whatever stands in the usual place.
    let Some(path) = context.config() else {
        return Ok(Config::default());
    };
    let directory = state::locate(context.global.state.as_deref(), &context.env)?;
    let vault = Vault::of(&directory, &context.env);
    let config = config::load_with(Some(path), &context.env, &vault)?;
    for warning in &config.warnings {
        context.out.warning(&warning.message);
    }
    for broken in &config.broken {
        context.out.warning(&up::left_out(broken));
    }
    let here = |reach: &Reach| matches!(reach, Reach::Child(_));
    for server in config.servers.iter().filter(|one| !here(&one.reach)) {
        let message = format!(
            "server `{}` is not started here, and is not offered",
            server.name
        );
        context.out.warning(&message);
    }
    Ok(config)
}
