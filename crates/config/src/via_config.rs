//! Servers reached through an executor, and headers completed by the executor.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_core::suggest::nearest_match;
use bowline_host::executor::frames::SecretHeader;
use http::HeaderName;

use super::config_names;
use super::config_problem::ConfigProblem;
use super::expand::list_references;
use super::file::{ServerSection, UnexpandedText};
use crate::secrets;

/// Prefix of an executor name.
const EXECUTOR_PREFIX: &str = "executor:";

/// Prefix of a reference to a secret of an executor.
const EXECUTOR_SECRET_PREFIX: &str = "${executor:";

/// The executor that sends the requests of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViaConfig {
    /// Name of the executor.
    pub executor: Arc<str>,
    /// Headers completed by the executor.
    pub secret_headers: Vec<SecretHeader>,
}

/// A server started by an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementConfig {
    /// The name of the executor.
    pub executor: Arc<str>,
    /// Name of the server on the executor.
    pub server: Arc<str>,
}

/// Parses `via`.
pub(super) fn parse_via(via: &UnexpandedText) -> Result<Arc<str>, ConfigProblem> {
    let text = via.text.trim();
    let wrong = |label: String| {
        let message = format!("`via` cannot be \"{}\"", text.escape_debug());
        ConfigProblem::new(via.span.clone(), message, label)
            .with_help("write via = \"executor:NAME\"")
    };
    let Some(named) = text.strip_prefix(EXECUTOR_PREFIX) else {
        let near = text.split_once(':');
        let near = near.and_then(|(word, _)| nearest_match(word, ["executor"]));
        return Err(wrong(match near {
            Some(near) => format!("did you mean \"{near}:\"?"),
            None if config_names::is_valid(text) => {
                format!("did you mean \"{EXECUTOR_PREFIX}{text}\"?")
            }
            None => "expected \"executor:NAME\"".to_owned(),
        }));
    };
    if !config_names::is_valid(named) {
        return Err(wrong(
            "the name of an executor is like that of a server".to_owned(),
        ));
    }
    Ok(named.into())
}

/// Returns the executors referenced by servers, including servers unable to run on this machine.
pub(super) fn list_executors(servers: &[ServerSection]) -> BTreeSet<Arc<str>> {
    let via = servers.iter().filter_map(|server| server.via.as_ref());
    via.filter_map(|via| parse_via(via).ok()).collect()
}

/// Resolves a server with `via` but neither `command` nor `url`.
pub(super) fn resolve_placement(
    server: &ServerSection,
    server_name: &str,
    via: &UnexpandedText,
) -> Result<PlacementConfig, ConfigProblem> {
    let remote_name = match &server.remote_name {
        None => server_name,
        Some(remote_name) if config_names::is_valid(remote_name.text.trim()) => {
            remote_name.text.trim()
        }
        Some(remote_name) => {
            let message = format!("`server` cannot be \"{}\"", remote_name.text.escape_debug());
            let label = "lower-case letters, digits and `-`, at most 32, not `-` first";
            return Err(ConfigProblem::new(remote_name.span.clone(), message, label));
        }
    };
    Ok(PlacementConfig {
        executor: parse_via(via)?,
        server: remote_name.into(),
    })
}

/// Refuses `via` and `server` keys without use.
pub(super) fn refuse_executor_only_keys(
    server: &ServerSection,
    server_name: &str,
) -> Result<(), ConfigProblem> {
    if let (Some(via), Some(_)) = (&server.via, &server.command) {
        let message = format!("server `{server_name}` has both `command` and `via`");
        let problem = ConfigProblem::new(via.span.clone(), message, "where is it started?");
        return Err(problem.with_help(format!(
            "keep `command` in the config of the executor, as [servers.{server_name}], \
             and `via` here"
        )));
    }
    let Some(remote_name) = &server.remote_name else {
        return Ok(());
    };
    let problem =
        |message: String, label: &str| ConfigProblem::new(remote_name.span.clone(), message, label);
    if server.command.is_some() || server.via.is_none() {
        let message = format!("server `{server_name}` has `server` and no `via`");
        return Err(problem(message, "only a server on an executor has it")
            .with_help("add via = \"executor:NAME\""));
    }
    if server.url.is_some() {
        let message = format!("server `{server_name}` has both `url` and `server`");
        return Err(problem(message, "is it started or reached?").with_help("keep one of them"));
    }
    Ok(())
}

/// Parses a header with a secret filled in by an executor; `None` for any other header.
pub(super) fn parse_secret_header(
    header: &HeaderName,
    value: &UnexpandedText,
) -> Result<Option<SecretHeader>, ConfigProblem> {
    let mut references = list_references(&value.text);
    let Some(secret) = references.find_map(|references| references.strip_prefix("executor:"))
    else {
        return Ok(None);
    };
    let wrong = |label: String| {
        let message = format!("`headers.{header}` cannot be sent by an executor");
        ConfigProblem::new(value.span.clone(), message, label)
    };
    if !secrets::is_secret_name(secret) {
        let secret = secret.escape_debug();
        return Err(wrong(format!(
            "`{EXECUTOR_SECRET_PREFIX}{secret}}}` names no secret"
        )));
    }
    if list_references(&value.text).count() > 1 {
        let label = "one `${executor:NAME}` stands alone in a header";
        return Err(
            wrong(label.to_owned()).with_help("give the executor a secret that is the whole")
        );
    }
    let whole = format!("{EXECUTOR_SECRET_PREFIX}{secret}}}");
    let (before, after) = value.text.split_once(&whole).unwrap_or_default();
    let plain = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !plain(before) || !plain(after) || before.contains("$${") || after.contains("$${") {
        return Err(wrong("it holds what no header can".to_owned()));
    }
    Ok(Some(SecretHeader {
        header: header.as_str().into(),
        before: before.into(),
        secret: secret.into(),
        after: after.into(),
    }))
}
