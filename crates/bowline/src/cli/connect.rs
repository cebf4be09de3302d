//! `connect`: says what a client needs to reach the gateway. It changes no file of the client.

use serde_json::json;

use super::Context;
use super::args::Connect;
use super::client::Client as Api;
use super::daemon::Finder;
use super::failure::{Exit, Failure};
use super::run::{check_server, endpoint, settings};
use crate::clients::{Entry, TOKEN_VARIABLE, Token, shell_line};
use crate::config::Config;

pub(super) fn run(asked: &Connect, context: &mut Context) -> Result<Exit, Failure> {
    let config = settings(context)?;
    let server = asked.server.as_deref();
    let (base, api) = match Finder::new(context).find() {
        Ok(daemon) => (daemon.url, Some(Api::new(context)?)),
        // One that is started later listens where the config says.
        Err(failure) if failure.code == "not_running" => (configured(&config, failure)?, None),
        Err(failure) => return Err(failure),
    };
    if let Some(server) = server {
        check_server(server, &config, api.as_ref())?;
    }
    let path = endpoint(server, asked.profile.as_deref(), &config)?;
    let url = format!("{base}{path}");
    let arguments = asked.client.arguments(Entry {
        name: &asked.name,
        url: &url,
        token: Token::FromEnvironment,
    });
    let client = asked.client.name();
    let line = shell_line(&arguments);
    let value = json!({
        "v": 1,
        "client": client,
        "url": url,
        "args": arguments,
        "shell": line,
        "variable": TOKEN_VARIABLE,
    });
    context.out.result(&value, |out| {
        if asked.shell {
            return out.line(&line);
        }
        let mut lines = arguments.iter();
        lines.try_for_each(|argument| out.line(argument))
    })?;
    context.out.note(&format!(
        "the token is read from ${TOKEN_VARIABLE}; make one: bowline token create, or let \
         `bowline run {client} -- ARGS` do all of it"
    ));
    Ok(Exit::Ok)
}

/// Returns where a gateway would listen, if that is one place.
fn configured(config: &Config, failure: Failure) -> Result<String, Failure> {
    match config.addresses().first() {
        Some(address) if address.port() != 0 => Ok(format!("http://{address}")),
        Some(_) | None => Err(failure),
    }
}
