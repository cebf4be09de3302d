//! The little JSON that scripted servers read and write.

use std::fmt::Write as _;
use std::ops::Range;

use bowline_core::call::Body;
use bowline_core::era::Era;
use bowline_link::{Answer, Request};

/// Returns `text` as a JSON string.
#[must_use]
pub fn literal(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns the definition of a tool that takes anything.
#[must_use]
pub fn definition(name: &str) -> String {
    let name = literal(name);
    format!("{{\"name\":{name},\"inputSchema\":{{\"type\":\"object\"}}}}")
}

/// Returns the definition of a tool that takes anything and says this of itself.
#[must_use]
pub fn annotated(name: &str, annotations: &str) -> String {
    let name = literal(name);
    format!(
        "{{\"name\":{name},\"inputSchema\":{{\"type\":\"object\"}},\
         \"annotations\":{annotations}}}"
    )
}

/// Returns one page of a list.
pub(crate) fn page(definitions: &[String], next: Option<&str>) -> String {
    let tools = definitions.join(",");
    match next {
        Some(next) => format!("{{\"tools\":[{tools}],\"nextCursor\":{}}}", literal(next)),
        None => format!("{{\"tools\":[{tools}]}}"),
    }
}

/// Returns the parameters as the server reads them, renamed where the request says so.
pub(crate) fn params_sent(request: &Request) -> String {
    let params = request.params.clone().unwrap_or_default();
    let text = String::from_utf8_lossy(&params).into_owned();
    let Some(rename) = &request.rename else {
        return text;
    };
    let (before, after) = (text.get(..rename.at.start), text.get(rename.at.end..));
    format!(
        "{}{}{}",
        before.unwrap_or_default(),
        literal(&rename.to),
        after.unwrap_or_default()
    )
}

/// Reads `{"name":"…","arguments":…}` as written by [`call`](crate::call), plain names only.
pub(crate) fn read_call(params: &str) -> Option<(&str, &str)> {
    let (name, rest) = params.strip_prefix("{\"name\":\"")?.split_once('"')?;
    let rest = rest.strip_prefix(",\"arguments\":")?.strip_suffix('}')?;
    let arguments = rest.split(",\"_meta\":").next()?;
    Some((name, arguments))
}

/// Reads `{"cursor":"…"}`; the first page has none.
pub(crate) fn read_cursor(params: &str) -> &str {
    params
        .strip_prefix("{\"cursor\":\"")
        .and_then(|rest| rest.strip_suffix("\"}"))
        .unwrap_or_default()
}

/// Wraps a result or an error into an answer to `request`.
pub(crate) fn answer(request: &Request, body: Body, text: &str) -> Answer {
    let key = match body {
        Body::Result => "result",
        Body::Error => "error",
    };
    let id = String::from_utf8_lossy(&request.reply_id);
    let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{key}\":");
    let body_at: Range<usize> = start.len()..start.len() + text.len();
    // Only in one era do results say what they are.
    let era = match body == Body::Result && text.contains("\"resultType\"") {
        true => Era::Modern,
        false => Era::Legacy,
    };
    Answer {
        bytes: format!("{start}{text}}}").into(),
        body,
        body_at,
        era,
    }
}

/// Returns the progress notification with the caller's own token, if it wants any.
pub(crate) fn progress(request: &Request, done: u32) -> Option<String> {
    let params = request.params.as_ref()?;
    let token = params.get(request.progress_at.clone()?)?;
    let token = String::from_utf8_lossy(token);
    Some(format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\
         \"params\":{{\"progressToken\":{token},\"progress\":{done}}}}}"
    ))
}
