//! What the file says of executors: those that are dialled, and what this machine is as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::egress::{Egress, Rule};
pub use bowline_host::executor::Protocol;
use bowline_link::http::endpoint::{Endpoint, EndpointError};

use super::expand::Source;
use super::file::{self, Text};
use super::frame::{Problem, place};
use super::reach::{Ground, Template};
use super::{Config, Warning};

/// What can be spoken with an executor.
pub(crate) const PROTOCOLS: [Protocol; 2] = [Protocol::Bowline, Protocol::ExecServer];

/// An executor that is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// Where it listens.
    pub url: Endpoint,
    /// What is spoken there.
    pub protocol: Protocol,
    /// What proves who we are, read for every connection.
    pub token: Option<Template>,
}

/// What this machine does where it is an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServantConfig {
    /// What may be reached for every server of the gateway.
    pub allow: Vec<Rule>,
    /// What may be reached for single ones as well.
    pub servers: BTreeMap<Arc<str>, Vec<Rule>>,
    /// Secrets that are filled in, by name.
    pub secrets: BTreeMap<Arc<str>, HeldSecret>,
}

/// A secret that is filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSecret {
    /// Read whenever it is sent.
    pub value: Template,
    /// Where it may be sent, and nowhere else.
    pub to: Egress,
}

/// Reads the address of an executor or of a gateway, `ws` or `http`, with or without TLS.
pub(crate) fn endpoint(text: &str) -> Result<Endpoint, EndpointError> {
    let text = text.trim();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let rest = |scheme: &str| text.get(scheme.len()..).unwrap_or_default();
    match scheme.map(str::to_ascii_lowercase).as_deref() {
        Some("ws") => Endpoint::parse(&format!("http{}", rest("ws"))),
        Some("wss") => Endpoint::parse(&format!("https{}", rest("wss"))),
        _ => Endpoint::parse(text),
    }
}

/// Takes in what the file says.
pub(super) fn resolve(
    (written, servant): (&[file::Executor], &file::Servant),
    (text, source): (&str, Source<'_>),
    config: &mut Config,
    problems: &mut Vec<Problem>,
) {
    let ground = Ground::new(source);
    for one in written {
        match dialled(one, &ground) {
            Ok(executor) => {
                look(&mut config.warnings, one, &executor, text);
                config.executors.insert(one.name.as_str().into(), executor);
            }
            Err(problem) => problems.push(problem),
        }
    }
    config.servant = own(servant, &ground);
    for secret in &servant.secrets {
        let held = config.servant.secrets.get(secret.name.as_str());
        if let Some(Err(reason)) = held.map(|held| held.value.value()) {
            let at = secret.value.as_ref().map(|value| value.span.start);
            config.warnings.push(Warning {
                place: at.map(|at| place(text, at)),
                message: format!("`executor.secrets.{}`: {reason}", secret.name),
            });
        }
    }
}

fn dialled(one: &file::Executor, ground: &Ground) -> Result<ExecutorConfig, Problem> {
    let name = &one.name;
    let Some(url) = &one.url else {
        let message = format!("executor `{name}` has no `url`");
        let problem = Problem::new(one.span.clone(), message, "`url` is missing");
        return Err(problem.help(
            "add url = \"ws://HOST:PORT\", or remove the table: an executor that joins needs none",
        ));
    };
    let endpoint = endpoint(&url.text).map_err(|error| {
        let message = format!("executor `{name}` cannot be reached at this `url`");
        let problem = Problem::new(url.span.clone(), message, error.to_string());
        problem.help("for instance url = \"wss://executor.example:8790\"")
    })?;
    Ok(ExecutorConfig {
        url: endpoint,
        protocol: one.protocol,
        token: (one.token.as_ref()).map(|token| Template::new(&token.text, ground)),
    })
}

fn look(warnings: &mut Vec<Warning>, one: &file::Executor, executor: &ExecutorConfig, text: &str) {
    let mut add = |at: &Text, message: String| {
        warnings.push(Warning {
            place: Some(place(text, at.span.start)),
            message,
        });
    };
    let name = &one.name;
    if let Some(url) = one.url.as_ref().filter(|_| !executor.url.is_private()) {
        let message =
            format!("executor `{name}` is another machine, and its `url` is not encrypted");
        add(url, message);
    }
    if let (Some(token), Some(template)) = (&one.token, &executor.token)
        && let Err(reason) = template.value()
    {
        add(token, format!("executor `{name}` has no token: {reason}"));
    }
}

fn own(servant: &file::Servant, ground: &Ground) -> ServantConfig {
    let servers = servant.servers.iter();
    let mut own = ServantConfig {
        allow: servant.allow.clone(),
        servers: servers
            .map(|(name, allow)| (name.as_str().into(), allow.clone()))
            .collect(),
        secrets: BTreeMap::new(),
    };
    for secret in &servant.secrets {
        // One without a value was told already.
        if let Some(value) = &secret.value {
            let to = secret.to.clone();
            let held = HeldSecret {
                value: Template::new(&value.text, ground),
                // There are no more than fit: the file was read so.
                to: Egress::new(to).unwrap_or_default(),
            };
            own.secrets.insert(secret.name.as_str().into(), held);
        }
    }
    own
}
