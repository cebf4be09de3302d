//! Secrets where others can read them: in the arguments of a process, and in an address that is
//! reached without TLS.

use bowline_link::http::endpoint::Endpoint;

use super::ArgvSecrets;
use super::expand::references;
use super::file::{Server, Text};
use super::frame::Problem;
use super::secrets::is_telling;
use crate::secrets::is_name;

/// Refuses arguments that hold a secret, unless the entry allows them.
pub(super) fn refuse_argv_secrets(server: &Server, name: &str) -> Result<(), Problem> {
    let mut args = server.args.iter();
    let Some(arg) = args.find(|arg| references(&arg.text).any(is_secret)) else {
        return Ok(());
    };
    if server.argv_secrets == ArgvSecrets::Allow {
        return Ok(());
    }
    let message = format!("server `{name}` would have a secret in its arguments");
    let label = "every user of this machine can read the arguments of a process";
    Err(Problem::new(arg.span.clone(), message, label).help(
        "give it by the environment: env = { NAME = \"${secret:...}\" }; where the program takes \
         it nowhere else, add argv_secrets = \"allow\"",
    ))
}

/// Says that an address holds a secret and is reached without TLS.
pub(super) fn plain_url(url: &Text, name: &str) -> Problem {
    let message = format!("the `url` of server `{name}` holds a secret and is not https");
    let label = "everybody on the way can read it";
    Problem::new(url.span.clone(), message, label)
        .help("use https, or reach the server over a tunnel that ends on this machine")
}

/// Whether an address holds a secret: a reference to one, or a part of the query whose name tells.
pub(super) fn has_secret(url: &str) -> bool {
    let is_telling_variable = |inside: &str| {
        let name = inside.split(":-").next().unwrap_or_default();
        is_telling(name)
    };
    let mut references = references(url);
    if references.any(|inside| is_secret(inside) || is_telling_variable(inside)) {
        return true;
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split('#').next().unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.any(|(name, value)| !value.is_empty() && is_telling(name))
}

/// Whether what stands inside `${...}` is meant to be hidden.
fn is_secret(inside: &str) -> bool {
    let name = inside.strip_prefix("secret:");
    name.is_some_and(is_name) || inside.starts_with("file:")
}

/// Whether an address is plainly one of another machine that is reached without TLS. What is not
/// known before references are read is left alone.
pub(super) fn is_plain_elsewhere(url: &str) -> bool {
    Endpoint::parse(url).is_ok_and(|endpoint| !endpoint.is_private())
}
