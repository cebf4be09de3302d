//! Writes the parameters of one era as those of the other, before anything else is changed in
//! them.

use std::ops::Range;

use bowline_core::caller::Abilities;
use bowline_core::era::Era;
use bowline_core::level::Level;
use bowline_wire::Span;
use bowline_wire::era::meta::{self, NO_PARAMS, Stamp, Tasks};
use bowline_wire::era::tasks::is_wanted;
use bowline_wire::era::{Change, applied};
use bowline_wire::mcp::method;
use bowline_wire::object::fields;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;

use crate::link::Request;
use crate::stdio::ClientInfo;

/// What a caller hears of a server's log unless it says otherwise: legacy servers choose that.
const LEVEL_DEFAULT: Level = Level::Info;

/// Makes a request of the legacy era one of the modern one: it says itself what was said in the
/// handshake. `abilities` are those of the caller.
pub(crate) fn to_modern(request: &mut Request, client: &ClientInfo, abilities: Abilities) {
    to_round(request, client, abilities, b"");
}

/// Does the same for a further round, whose members are in `front`.
pub(super) fn to_round(
    request: &mut Request,
    client: &ClientInfo,
    abilities: Abilities,
    front: &[u8],
) {
    // What only the modern era says was not said by a caller of the other.
    to_legacy(request);
    let level = request.caller.as_ref().map(|caller| caller.level());
    let level = level.map(|level| level.unwrap_or(LEVEL_DEFAULT).as_str());
    let params = request.params.take();
    let params = params.unwrap_or_else(|| Bytes::from_static(NO_PARAMS));
    let stamp = Stamp {
        capabilities: &meta::capabilities(abilities, tasks(&request.method, &params)),
        client_info: &info(client),
        log_level: level,
        more: b"",
        front,
    };
    let mut changes = Vec::new();
    meta::stamp(&params, &stamp, &mut changes);
    request.params = Some(edited(params, changes, request));
    request.era = Era::Modern;
}

/// Makes a request of the modern era one of the legacy one: what the handshake said is taken out,
/// and so is what goes on with a question, which a legacy server asks in another way.
pub(crate) fn to_legacy(request: &mut Request) {
    request.era = Era::Legacy;
    if let Some(params) = request.params.take() {
        let mut changes = Vec::new();
        meta::bare(&params, &mut changes);
        request.params = Some(edited(params, changes, request));
    }
}

/// Returns a text without a member of the object at `at`.
pub(crate) fn taken_out(text: &[u8], at: Span, key: &str) -> Bytes {
    let object = at.of(text);
    let mut left = vec![b'{'];
    for (name, value) in fields(object).filter(|(name, _)| name != key) {
        if left.len() > 1 {
            left.push(b',');
        }
        write_string(&mut left, &name);
        left.push(b':');
        left.extend_from_slice(value.of(object));
    }
    left.push(b'}');
    replace(text, at, &left).into()
}

/// Whether a task is taken for an answer: where the caller wants one, and where it asks of one.
fn tasks(method: &str, params: &[u8]) -> Tasks {
    let is_wanted = match method {
        method::TOOLS_CALL => is_wanted(params),
        method => method.starts_with("tasks/"),
    };
    match is_wanted {
        true => Tasks::Taken,
        false => Tasks::NotTaken,
    }
}

/// Returns who the gateway is, as an object.
fn info(client: &ClientInfo) -> Vec<u8> {
    let mut out = b"{\"name\":".to_vec();
    write_string(&mut out, &client.name);
    out.extend_from_slice(b",\"version\":");
    write_string(&mut out, &client.version);
    out.push(b'}');
    out
}

/// Applies changes, and moves the places that a request knows in its parameters.
fn edited(params: Bytes, mut changes: Vec<Change>, request: &mut Request) -> Bytes {
    if changes.is_empty() {
        return params;
    }
    let new = applied(&params, &mut changes).into();
    if let Some(rename) = &mut request.rename {
        shift(&mut rename.at, &changes);
    }
    if let Some(at) = &mut request.progress_at {
        shift(at, &changes);
    }
    new
}

/// Moves a place by what changes before it.
fn shift(place: &mut Range<usize>, changes: &[Change]) {
    let before = changes.iter().filter(|(at, _)| at.end <= place.start);
    let (mut gone, mut come) = (0, 0);
    for (at, with) in before {
        gone += at.len();
        come += with.len();
    }
    place.start = place.start - gone + come;
    place.end = place.end - gone + come;
}

#[cfg(test)]
mod tests;
