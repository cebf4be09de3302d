//! `server/discover`: what an endpoint speaks, what it has, and who it is.

use bowline_wire::mcp::meta;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use http::StatusCode;

use super::read::{Asked, write_supported};
use super::result::{NOT_KEPT, complete};
use crate::edge::body::{self, Answer};
use crate::edge::mcp::{outbox, result};

/// Answers `server/discover`. A single server is introduced by its own words.
pub(super) async fn answer(asked: Asked<'_>) -> Answer {
    let caller = asked.caller;
    let host = &caller.edge.host;
    host.introduced(caller.principal, caller.scope).await;
    let own = caller
        .edge
        .host
        .introduction(caller.principal, caller.scope);
    let declared = outbox::declare(caller.edge, caller.scope, own.capabilities);
    let mut told = Vec::from(&b"{\"supportedVersions\":"[..]);
    write_supported(&mut told);
    told.extend_from_slice(b",\"capabilities\":");
    write_capabilities(&mut told, &declared);
    if let Some(words) = own.instructions {
        told.extend_from_slice(b",\"instructions\":");
        told.extend_from_slice(&words);
    }
    if let Some(meta) = own.meta {
        told.extend_from_slice(b",\"_meta\":");
        told.extend_from_slice(&meta);
    }
    told.push(b'}');
    let told = complete(&asked, &told, Some(own.hint.unwrap_or(NOT_KEPT)));
    body::json(StatusCode::OK, result(asked.id(), &told))
}

/// Writes capabilities as this era has them: tasks are an extension.
fn write_capabilities(out: &mut Vec<u8>, declared: &[u8]) {
    let mut first = true;
    let mut extensions: Option<&[u8]> = None;
    let mut tasks = false;
    out.push(b'{');
    for (key, at) in object::fields(declared) {
        match key.as_ref() {
            "tasks" => tasks = true,
            "extensions" => extensions = Some(at.of(declared)),
            _ => {
                separate(out, &mut first);
                write_string(out, &key);
                out.push(b':');
                out.extend_from_slice(at.of(declared));
            }
        }
    }
    let extensions = extensions.unwrap_or(b"{}");
    tasks &= object::field(extensions, meta::TASKS).is_none();
    if tasks || object::fields(extensions).next().is_some() {
        separate(out, &mut first);
        out.extend_from_slice(b"\"extensions\":{");
        let mut first = true;
        if tasks {
            separate(out, &mut first);
            write_string(out, meta::TASKS);
            out.extend_from_slice(b":{}");
        }
        for (key, at) in object::fields(extensions) {
            separate(out, &mut first);
            write_string(out, &key);
            out.push(b':');
            out.extend_from_slice(at.of(extensions));
        }
        out.push(b'}');
    }
    out.push(b'}');
}

fn separate(out: &mut Vec<u8>, first: &mut bool) {
    if !std::mem::replace(first, false) {
        out.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_an_extension_and_all_else_stays() {
        for (declared, want) in [
            ("{}", "{}"),
            (
                r#"{"tools":{"listChanged":true},"x":1,"logging":{}}"#,
                r#"{"tools":{"listChanged":true},"x":1,"logging":{}}"#,
            ),
            (
                r#"{"tasks":{"list":{}}}"#,
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            ),
            (
                r#"{"extensions":{"a/b":{"c":1},"io.modelcontextprotocol/tasks":{"d":2}},"tasks":{},"tools":{}}"#,
                r#"{"tools":{},"extensions":{"a/b":{"c":1},"io.modelcontextprotocol/tasks":{"d":2}}}"#,
            ),
            (r#"{"extensions":{}}"#, "{}"),
        ] {
            let mut out = Vec::new();
            write_capabilities(&mut out, declared.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), want, "{declared}");
        }
    }
}
