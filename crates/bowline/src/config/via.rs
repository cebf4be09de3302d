//! Where the requests of a server leave from, and what only an executor can write into them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_wire::executor::Fill;
use http::HeaderName;

use super::expand::references;
use super::file::{Server, Text};
use super::frame::Problem;
use super::name;
use super::suggest::nearest;
use crate::secrets;

/// What stands before the name of an executor.
const EXECUTOR: &str = "executor:";

/// What stands before the name of a secret of an executor.
const SECRET: &str = "${executor:";

/// The way to a server that leads through an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via {
    /// Its name.
    pub executor: Arc<str>,
    /// Headers that it completes.
    pub fills: Vec<Fill>,
}

/// A server that an executor starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The name of the executor.
    pub executor: Arc<str>,
    /// What the server is called there.
    pub server: Arc<str>,
}

/// Reads `via`.
pub(super) fn executor(via: &Text) -> Result<Arc<str>, Problem> {
    let text = via.text.trim();
    let wrong = |label: String| {
        let message = format!("`via` cannot be \"{}\"", text.escape_debug());
        Problem::new(via.span.clone(), message, label).help("write via = \"executor:NAME\"")
    };
    let Some(named) = text.strip_prefix(EXECUTOR) else {
        let near = text.split_once(':');
        let near = near.and_then(|(word, _)| nearest(word, ["executor"]));
        return Err(wrong(match near {
            Some(near) => format!("did you mean \"{near}:\"?"),
            None if name::is_valid(text) => format!("did you mean \"{EXECUTOR}{text}\"?"),
            None => "expected \"executor:NAME\"".to_owned(),
        }));
    };
    if !name::is_valid(named) {
        return Err(wrong(
            "the name of an executor is like that of a server".to_owned(),
        ));
    }
    Ok(named.into())
}

/// Returns the executors that servers refer to, also servers that cannot run on this machine.
pub(super) fn list_executors(servers: &[Server]) -> BTreeSet<Arc<str>> {
    let via = servers.iter().filter_map(|server| server.via.as_ref());
    via.filter_map(|via| executor(via).ok()).collect()
}

/// Reads a server that has neither `command` nor `url`, but `via`.
pub(super) fn placed(server: &Server, own: &str, via: &Text) -> Result<Placed, Problem> {
    let there = match &server.there {
        None => own,
        Some(there) if name::is_valid(there.text.trim()) => there.text.trim(),
        Some(there) => {
            let message = format!("`server` cannot be \"{}\"", there.text.escape_debug());
            let label = "lower-case letters, digits and `-`, at most 32, not `-` first";
            return Err(Problem::new(there.span.clone(), message, label));
        }
    };
    Ok(Placed {
        executor: executor(via)?,
        server: there.into(),
    })
}

/// Refuses `via` and `server` where they say nothing.
pub(super) fn refuse_what_only_executors_have(server: &Server, own: &str) -> Result<(), Problem> {
    if let (Some(via), Some(_)) = (&server.via, &server.command) {
        let message = format!("server `{own}` has both `command` and `via`");
        let problem = Problem::new(via.span.clone(), message, "where is it started?");
        return Err(problem.help(format!(
            "keep `command` in the config of the executor, as [servers.{own}], and `via` here"
        )));
    }
    let Some(there) = &server.there else {
        return Ok(());
    };
    let problem = |message: String, label: &str| Problem::new(there.span.clone(), message, label);
    if server.command.is_some() || server.via.is_none() {
        let message = format!("server `{own}` has `server` and no `via`");
        return Err(problem(message, "only a server on an executor has it")
            .help("add via = \"executor:NAME\""));
    }
    if server.url.is_some() {
        let message = format!("server `{own}` has both `url` and `server`");
        return Err(problem(message, "is it started or reached?").help("keep one of them"));
    }
    Ok(())
}

/// Reads a header in which an executor fills a secret in; none where it does not.
pub(super) fn fill(header: &HeaderName, value: &Text) -> Result<Option<Fill>, Problem> {
    let mut inside = references(&value.text);
    let Some(secret) = inside.find_map(|inside| inside.strip_prefix("executor:")) else {
        return Ok(None);
    };
    let wrong = |label: String| {
        let message = format!("`headers.{header}` cannot be sent by an executor");
        Problem::new(value.span.clone(), message, label)
    };
    if !secrets::is_name(secret) {
        let secret = secret.escape_debug();
        return Err(wrong(format!("`{SECRET}{secret}}}` names no secret")));
    }
    if references(&value.text).count() > 1 {
        let label = "one `${executor:NAME}` stands alone in a header";
        return Err(wrong(label.to_owned()).help("give the executor a secret that is the whole"));
    }
    let whole = format!("{SECRET}{secret}}}");
    let (before, after) = value.text.split_once(&whole).unwrap_or_default();
    let plain = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !plain(before) || !plain(after) || before.contains("$${") || after.contains("$${") {
        return Err(wrong("it holds what no header can".to_owned()));
    }
    Ok(Some(Fill {
        header: header.as_str().into(),
        before: before.into(),
        secret: secret.into(),
        after: after.into(),
    }))
}
