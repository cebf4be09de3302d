//! Detects secrets readable by others: in process arguments, and in URLs reached without TLS.

use bowline_link::http::endpoint::HttpEndpoint;

use super::ArgvSecrets;
use super::config_problem::ConfigProblem;
use super::expand::list_references;
use super::file::{ServerSection, UnexpandedText};
use super::server_secrets::has_secret_word;
use crate::secrets::is_secret_name;

/// Refuses arguments with a secret, unless the server section permits them.
pub(super) fn refuse_argv_secrets(server: &ServerSection, name: &str) -> Result<(), ConfigProblem> {
    let mut args = server.args.iter();
    let Some(arg) = args.find(|arg| list_references(&arg.text).any(is_secret_reference)) else {
        return Ok(());
    };
    if server.argv_secrets == ArgvSecrets::Allow {
        return Ok(());
    }
    let message = format!("server `{name}` would have a secret in its arguments");
    let label = "every user of this machine can read the arguments of a process";
    Err(ConfigProblem::new(arg.span.clone(), message, label).with_help(
        "give it by the environment: env = { NAME = \"${secret:...}\" }; where the program takes \
         it nowhere else, add argv_secrets = \"allow\"",
    ))
}

/// Builds the problem for a URL with a secret reached without TLS.
pub(super) fn plain_url_problem(url: &UnexpandedText, name: &str) -> ConfigProblem {
    let message = format!("the `url` of server `{name}` holds a secret and is not https");
    let label = "everybody on the way can read it";
    ConfigProblem::new(url.span.clone(), message, label)
        .with_help("use https, or reach the server over a tunnel that ends on this machine")
}

/// Returns whether a URL holds a secret: a secret reference, or a query value with a telling name.
pub(super) fn has_secret(url: &str) -> bool {
    let is_telling_variable = |reference: &str| {
        let name = reference.split(":-").next().unwrap_or_default();
        has_secret_word(name)
    };
    let mut references = list_references(url);
    if references.any(|reference| is_secret_reference(reference) || is_telling_variable(reference))
    {
        return true;
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split('#').next().unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.any(|(name, value)| !value.is_empty() && has_secret_word(name))
}

/// Returns whether the inside of `${...}` names a secret or a file.
fn is_secret_reference(reference: &str) -> bool {
    let name = reference.strip_prefix("secret:");
    name.is_some_and(is_secret_name) || reference.starts_with("file:")
}

/// Returns whether a URL surely leads to another machine without TLS. URLs with references are
/// unknown before expansion and do not count.
pub(super) fn is_remote_without_tls(url: &str) -> bool {
    HttpEndpoint::parse(url).is_ok_and(|endpoint| !endpoint.is_private())
}
