//! Writes the parameters of one era as those of the other, before anything else is changed in
//! them.

use std::ops::Range;

use bowline_core::caller::{Abilities, Ability};
use bowline_core::era::Era;
use bowline_core::level::Level;
use bowline_wire::Span;
use bowline_wire::mcp::{Revision, meta};
use bowline_wire::object::{field, fields};
use bowline_wire::splice::{Edit, Edited, write_string};
use bytes::Bytes;

use crate::link::Request;
use crate::stdio::ClientInfo;

/// What a caller hears of a server's log unless it says otherwise.
const LEVEL_DEFAULT: Level = Level::Info;

/// Members of `_meta` that say what a handshake says.
const SAID: [&str; 4] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_CAPABILITIES,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
];

/// Members of the parameters that go on with a question.
const ROUND: [&str; 2] = ["inputResponses", "requestState"];

/// A change of parameters that owns its text.
type Change = (Span, Vec<u8>);

/// Makes a request of the legacy era one of the modern one: it says itself what was said in the
/// handshake. `abilities` are those of the caller.
pub(crate) fn to_modern(request: &mut Request, client: &ClientInfo, abilities: Abilities) {
    let level = request.caller.as_ref().map(|caller| caller.level());
    let level = level.map(|level| level.unwrap_or(LEVEL_DEFAULT));
    let members = said(client, abilities, level);
    let params = request.params.take();
    let params = params.unwrap_or_else(|| Bytes::from_static(b"{}"));
    let mut changes = Vec::new();
    let kept = without(&params, 0, &ROUND, &mut changes);
    match field(&params, "_meta") {
        // What stands there of the same names was not said by us.
        Some(at) if at.of(&params).starts_with(b"{") => {
            let kept = without(at.of(&params), at.start, &SAID, &mut changes);
            changes.push(entered(at, members, kept));
        }
        Some(at) => changes.push((at, [b"{", &members[..], b"}"].concat())),
        None => {
            let member = [b"\"_meta\":{", &members[..], b"}"].concat();
            changes.push(entered(open(&params), member, kept));
        }
    }
    request.params = Some(edited(params, changes, request));
    request.era = Era::Modern;
}

/// Makes a request of the modern era one of the legacy one: what the handshake said is taken out,
/// and so is what goes on with a question, which a legacy server asks in another way.
pub(crate) fn to_legacy(request: &mut Request) {
    request.era = Era::Legacy;
    let Some(params) = request.params.take() else {
        return;
    };
    let mut changes = Vec::new();
    without(&params, 0, &ROUND, &mut changes);
    if let Some(at) = field(&params, "_meta") {
        without(at.of(&params), at.start, &SAID, &mut changes);
    }
    request.params = Some(edited(params, changes, request));
}

/// Adds what a caller answered to the parameters of a request that is sent again. These must be
/// those of the first round.
pub(crate) fn answered(request: &mut Request, responses: Option<&[u8]>, state: Option<&[u8]>) {
    let Some(params) = request.params.take() else {
        return;
    };
    let mut members = Vec::new();
    for (key, value) in [("inputResponses", responses), ("requestState", state)] {
        if let Some(value) = value {
            write_member(&mut members, key, |out| out.extend_from_slice(value));
            members.push(b',');
        }
    }
    // Parameters of the modern era have at least `_meta`, so something follows.
    members.pop_if(|byte| *byte == b',');
    let change = entered(open(&params), members, Kept::Some);
    request.params = Some(edited(params, vec![change], request));
}

/// Returns a text without a member of the object at `at`.
pub(crate) fn taken_out(text: &[u8], at: Span, key: &str) -> Bytes {
    let mut changes = Vec::new();
    without(at.of(text), at.start, &[key], &mut changes);
    applied(text, &changes).into()
}

/// Returns the members of `_meta` that every request of the modern era has.
fn said(client: &ClientInfo, abilities: Abilities, level: Option<Level>) -> Vec<u8> {
    let mut members = Vec::new();
    write_member(&mut members, meta::PROTOCOL_VERSION, |out| {
        write_string(out, Revision::LATEST.as_str());
    });
    members.push(b',');
    write_member(&mut members, meta::CLIENT_INFO, |out| {
        out.extend_from_slice(b"{\"name\":");
        write_string(out, &client.name);
        out.extend_from_slice(b",\"version\":");
        write_string(out, &client.version);
        out.push(b'}');
    });
    members.push(b',');
    write_member(&mut members, meta::CLIENT_CAPABILITIES, |out| {
        write_capabilities(out, abilities);
    });
    if let Some(level) = level {
        members.push(b',');
        write_member(&mut members, meta::LOG_LEVEL, |out| {
            write_string(out, level.as_str());
        });
    }
    members
}

/// Writes client capabilities as an object of the modern era.
fn write_capabilities(out: &mut Vec<u8>, abilities: Abilities) {
    let mut members: Vec<&str> = Vec::new();
    if abilities.has(Ability::Roots) {
        members.push(r#""roots":{}"#);
    }
    if abilities.has(Ability::SamplingTools) {
        members.push(r#""sampling":{"tools":{}}"#);
    } else if abilities.has(Ability::Sampling) {
        members.push(r#""sampling":{}"#);
    }
    let form = abilities.has(Ability::ElicitationForm);
    match (form, abilities.has(Ability::ElicitationUrl)) {
        (true, true) => members.push(r#""elicitation":{"form":{},"url":{}}"#),
        (true, false) => members.push(r#""elicitation":{"form":{}}"#),
        (false, true) => members.push(r#""elicitation":{"url":{}}"#),
        (false, false) => {}
    }
    out.push(b'{');
    out.extend_from_slice(members.join(",").as_bytes());
    out.push(b'}');
}

fn write_member(out: &mut Vec<u8>, key: &str, value: impl FnOnce(&mut Vec<u8>)) {
    write_string(out, key);
    out.push(b':');
    value(out);
}

/// Whether anything is left of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Some,
    Nothing,
}

/// Returns the change that writes members at the beginning of the object at `at`.
fn entered(at: Span, mut members: Vec<u8>, kept: Kept) -> Change {
    let start = at.start + 1;
    if kept == Kept::Some && !members.is_empty() {
        members.push(b',');
    }
    (Span { start, end: start }, members)
}

/// Returns the object that the parameters are.
fn open(params: &[u8]) -> Span {
    let start = params.iter().position(|byte| *byte == b'{');
    Span {
        start: start.unwrap_or(0),
        end: params.len(),
    }
}

/// Adds the changes that take members out of an object that stands at `base`.
fn without(object: &[u8], base: usize, keys: &[&str], changes: &mut Vec<Change>) -> Kept {
    let mut kept = Kept::Nothing;
    let mut before = open(object).start + 1;
    for (key, value) in fields(object) {
        let end = if keys.contains(&key.as_ref()) {
            value.end
        } else if std::mem::replace(&mut kept, Kept::Some) == Kept::Nothing {
            // The first that stays has no comma before it.
            let gap = object.get(before..value.start).unwrap_or_default();
            let quote = gap.iter().position(|byte| *byte == b'"');
            let comma = gap.iter().position(|byte| *byte == b',');
            match comma.filter(|comma| quote.is_some_and(|quote| *comma < quote)) {
                Some(comma) => before + comma + 1,
                None => before,
            }
        } else {
            before
        };
        if end > before {
            let at = Span { start: before, end };
            changes.push((at.shift(base), Vec::new()));
        }
        before = value.end;
    }
    kept
}

/// Applies changes, and moves the places that a request knows in its parameters.
fn edited(params: Bytes, mut changes: Vec<Change>, request: &mut Request) -> Bytes {
    if changes.is_empty() {
        return params;
    }
    // What is entered at a place stands before what is taken out there.
    changes.sort_by_key(|(at, _)| (at.start, at.end));
    if let Some(rename) = &mut request.rename {
        shift(&mut rename.at, &changes);
    }
    if let Some(at) = &mut request.progress_at {
        shift(at, &changes);
    }
    applied(&params, &changes).into()
}

/// Applies changes that are in the order of their places.
fn applied(source: &[u8], changes: &[Change]) -> Vec<u8> {
    let edits = changes.iter().map(|(at, with)| Edit { at: *at, with });
    let edits: Vec<_> = edits.collect();
    let edited = Edited {
        source,
        edits: &edits,
    };
    edited.to_vec()
}

/// Moves a place by what changes before it.
fn shift(place: &mut Range<usize>, changes: &[Change]) {
    let before = changes.iter().take_while(|(at, _)| at.end <= place.start);
    let (mut gone, mut come) = (0, 0);
    for (at, with) in before {
        gone += at.len();
        come += with.len();
    }
    place.start = place.start - gone + come;
    place.end = place.end - gone + come;
}
