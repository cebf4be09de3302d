//! Results that are too long to be passed on whole: kept for a while, and read in parts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{Body, Call, Kind, Origin, Principal, Reply, Role, Route, Scope, Subject};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::policy::Thing;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_wire::era::result::kind;
use bowline_wire::object;
use serde_json::json;

use super::{CallPath, checked};
use crate::reply;
use crate::spec::ServerSpec;

/// How the addresses of kept results begin.
const URI: &str = "bowline://results/";

/// Bytes of all results that are kept.
const KEPT_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Bytes of the kept results of one principal; the owner may have all.
const PRINCIPAL_BYTES_MAX: usize = KEPT_BYTES_MAX / 2;

/// Kept results of one principal.
const PRINCIPAL_RESULTS_MAX: usize = 64;

/// How long a result is kept.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// Bytes of a result that are passed on at once.
const HEAD_BYTES: usize = 64 * 1024;

/// Bytes of a result that are read at once.
const PART_BYTES_MAX: usize = 1024 * 1024;

/// The results that are kept.
#[derive(Debug)]
pub(crate) struct KeptResults {
    table: Mutex<Table>,
    /// Begins every id, so that an address from before a restart names nothing.
    epoch_ms: u64,
}

#[derive(Debug, Default)]
struct Table {
    /// By their number: the oldest comes first.
    results: BTreeMap<u64, Kept>,
    bytes: usize,
    principals: HashMap<Arc<str>, Held>,
    next: u64,
}

/// What one principal has in the table.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    results: usize,
    bytes: usize,
}

/// One result.
#[derive(Debug)]
struct Kept {
    principal: Arc<str>,
    server: Arc<str>,
    tool: Arc<str>,
    text: Arc<str>,
    mime: &'static str,
    until: Now,
}

/// A result as people and models read it.
#[derive(Debug)]
struct Readable {
    text: Arc<str>,
    mime: &'static str,
    is_error: bool,
}

impl Readable {
    /// Reads the texts of a result where it has nothing else, and all of it as JSON otherwise.
    fn from_result(result: &[u8]) -> Self {
        let is_error = object::field(result, "isError").is_some_and(|at| at.of(result) == b"true");
        let (text, mime) = match texts(result) {
            Some(text) => (text, "text/plain"),
            None => {
                let json = String::from_utf8_lossy(result).into_owned();
                (json, "application/json")
            }
        };
        Self {
            text: text.into(),
            mime,
            is_error,
        }
    }
}

fn texts(result: &[u8]) -> Option<String> {
    if object::field(result, "structuredContent").is_some() {
        return None;
    }
    let content = object::field(result, "content")?.of(result);
    let mut all = String::new();
    for item in object::items(content) {
        let item = item.of(content);
        if object::text(item, "type")? != "text" {
            return None;
        }
        if !all.is_empty() {
            all.push('\n');
        }
        all.push_str(&object::text(item, "text")?);
    }
    Some(all)
}

impl CallPath {
    /// Keeps the result of a tool that is longer than its server's `max_result`, and returns a
    /// reply with its beginning and an address. What cannot be kept is refused as too large.
    pub(super) async fn keep(
        &self,
        call: &Call,
        (route, spec): (&Route, &ServerSpec),
        reply: Reply,
    ) -> Result<Reply, CallError> {
        let too_large = || CallError::AnswerTooLarge {
            server: Arc::clone(&route.server),
            bytes_max: spec.result_max,
        };
        let is_tool = matches!(call.subject, Subject::Tool(_));
        let result = reply.answer.slice(reply.body_at.clone());
        let is_end = reply.era == Era::Legacy || kind(&result).is_end();
        if !is_tool || reply.body != Body::Result || !is_end {
            return Err(too_large());
        }
        drop(reply);
        let job = move || Readable::from_result(&result);
        let readable = self.offload.run(&call.principal, job).await;
        let mut readable = readable.map_err(|_| too_large())?;
        // A tool that declares an output schema promises structured content, which a shortened
        // result has not; no client looks for it in an error result.
        readable.is_error |= checked::has_output_schema(&self.catalog, route);
        let until = self.clock.now().plus(KEPT_FOR);
        let number = lock(&self.results.table).put(
            &call.principal,
            Kept {
                principal: Arc::clone(&call.principal.name),
                server: Arc::clone(&route.server),
                tool: Arc::clone(&route.name),
                text: Arc::clone(&readable.text),
                mime: readable.mime,
                until,
            },
            self.clock.now(),
        );
        let number = number.ok_or_else(too_large)?;
        let uri = self.results.uri(number);
        let result = shortened(&uri, &readable, spec);
        Ok(Reply {
            server: Some(Arc::clone(&route.server)),
            ..reply::whole(result.as_bytes(), &call.id, Origin::Live)
        })
    }

    /// Answers a request for a part of a kept result; nothing where the call is another one.
    pub(crate) fn read_kept(&self, call: &Call) -> Option<Result<Reply, CallError>> {
        let Subject::Resource(uri) = &call.subject else {
            return None;
        };
        let (number, offset) = self.results.parse(uri)?;
        let allows = |kept: &Kept| {
            let thing = Thing {
                kind: Kind::Tool,
                server: &kept.server,
                name: &kept.tool,
                arguments: None,
            };
            let is_here = match &call.scope {
                Scope::Server(only) => *only == kept.server,
                Scope::All | Scope::Profile(_) => true,
            };
            let is_own = kept.principal == call.principal.name;
            is_own && is_here && self.decider.allows(&call.principal, &call.scope, thing)
        };
        let unknown = || CallError::UnknownResource {
            uri: Arc::clone(uri),
        };
        let found = {
            let mut table = lock(&self.results.table);
            table.expire(self.clock.now());
            let kept = table.results.get(&number).filter(|kept| allows(kept));
            kept.map(|kept| (Arc::clone(&kept.text), kept.mime))
        };
        let Some((text, mime)) = found.filter(|(text, _)| offset < text.len()) else {
            return Some(Err(unknown()));
        };
        let (part, next) = part_from(&text, offset, PART_BYTES_MAX);
        let contents = match next {
            Some(next) => {
                let next = format!("{}?offset={next}", self.results.uri(number));
                let meta = json!({"dev.bowline/next": next, "dev.bowline/bytes": text.len()});
                json!({"uri": &**uri, "mimeType": mime, "text": part, "_meta": meta})
            }
            None => json!({"uri": &**uri, "mimeType": mime, "text": part}),
        };
        let result = json!({"contents": [contents]}).to_string();
        Some(Ok(reply::whole(result.as_bytes(), &call.id, Origin::Live)))
    }
}

/// Writes the result that takes the place of a kept one.
fn shortened(uri: &str, readable: &Readable, spec: &ServerSpec) -> String {
    let Readable { text, mime, .. } = readable;
    let (head, next) = part_from(text, 0, HEAD_BYTES);
    let rest = format!("{uri}?offset={}", next.unwrap_or_default());
    let minutes = KEPT_FOR.as_secs() / 60;
    let note = format!(
        "The call completed; do not repeat it. Its result is {} bytes long as {mime}, more than \
         max_result of server `{}` ({} bytes) lets through. Above is its beginning; read the \
         resource {rest} for the rest, within {minutes} minutes.",
        text.len(),
        spec.name,
        spec.result_max,
    );
    json!({
        "content": [
            {"type": "text", "text": head},
            {"type": "text", "text": note},
            {
                "type": "resource_link", "uri": rest, "name": "rest of the result",
                "mimeType": mime, "size": text.len() - head.len(),
            },
        ],
        "isError": readable.is_error,
        "_meta": {"dev.bowline/result": {
            "execution": "completed", "uri": uri, "bytes": text.len(), "shown": head.len(),
        }},
    })
    .to_string()
}

/// Returns the part of a text from `offset` on, and where the next one begins.
fn part_from(text: &str, offset: usize, bytes_max: usize) -> (&str, Option<usize>) {
    let start = boundary(text, offset);
    let end = boundary(text, start.saturating_add(bytes_max));
    let part = text.get(start..end).unwrap_or_default();
    (part, (end < text.len()).then_some(end))
}

/// Returns the nearest place at or before `at` where a character begins.
fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl KeptResults {
    /// Returns a table that keeps nothing yet; `epoch_ms` is the time of day.
    pub(crate) fn new(epoch_ms: u64) -> Self {
        Self {
            table: Mutex::default(),
            epoch_ms,
        }
    }

    fn uri(&self, number: u64) -> String {
        format!("{URI}{:x}-{number:x}", self.epoch_ms)
    }

    /// Reads an address of ours: which result, and from where on.
    fn parse(&self, uri: &str) -> Option<(u64, usize)> {
        let id = uri.strip_prefix(URI)?;
        let (id, offset) = id.split_once("?offset=").unwrap_or((id, "0"));
        let (epoch, number) = id.split_once('-')?;
        let is_ours = u64::from_str_radix(epoch, 16).ok()? == self.epoch_ms;
        // One from before a restart names nothing, and is answered as such.
        let number = u64::from_str_radix(number, 16).ok()?;
        let number = if is_ours { number } else { u64::MAX };
        Some((number, offset.parse().ok()?))
    }
}

impl Table {
    /// Keeps a result. The oldest of the same principal make room for it; nothing of others does.
    fn put(&mut self, principal: &Principal, kept: Kept, now: Now) -> Option<u64> {
        self.expire(now);
        let bytes = kept.text.len();
        let share = match principal.role {
            Role::Owner => KEPT_BYTES_MAX,
            _ => PRINCIPAL_BYTES_MAX,
        };
        let is_full = |table: &Self| {
            let held = table.held(&kept.principal);
            held.bytes + bytes > share
                || held.results >= PRINCIPAL_RESULTS_MAX
                || table.bytes + bytes > KEPT_BYTES_MAX
        };
        if bytes > share {
            return None;
        }
        while is_full(self) {
            let mut results = self.results.iter();
            let oldest = results.find(|(_, one)| one.principal == kept.principal);
            let oldest = oldest.map(|(number, _)| *number)?;
            self.remove(oldest);
        }
        let held = self.principals.entry(Arc::clone(&kept.principal));
        let held = held.or_default();
        held.results += 1;
        held.bytes += bytes;
        self.bytes += bytes;
        let number = self.next;
        self.next += 1;
        self.results.insert(number, kept);
        Some(number)
    }

    fn held(&self, principal: &str) -> Held {
        self.principals.get(principal).copied().unwrap_or_default()
    }

    /// Lets go of results whose time is over; all have the same, so the oldest go first.
    fn expire(&mut self, now: Now) {
        while let Some((oldest, kept)) = self.results.first_key_value()
            && kept.until <= now
        {
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(kept) = self.results.remove(&number) else {
            return;
        };
        let bytes = kept.text.len();
        self.bytes -= bytes;
        if let Some(held) = self.principals.get_mut(&kept.principal) {
            held.results -= 1;
            held.bytes -= bytes;
            if held.results == 0 {
                self.principals.remove(&kept.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(principal: &str, bytes: usize, until: u64) -> Kept {
        Kept {
            principal: principal.into(),
            server: "s".into(),
            tool: "t".into(),
            text: "x".repeat(bytes).into(),
            mime: "text/plain",
            until: Now(until),
        }
    }

    fn named(name: &str) -> Principal {
        Principal::new(name, Role::Named("r".into()))
    }

    #[test]
    fn full_table_evicts_results_of_same_principal() {
        const MIB: usize = 1024 * 1024;
        let (ann, bob, cid) = (named("ann"), named("bob"), named("cid"));
        let mut table = Table::default();
        let mut put = |who: &Principal, mib: usize| {
            let one = kept(&who.name, mib * MIB, 9);
            table.put(who, one, Now(0))
        };
        assert_eq!(put(&ann, 40), Some(0));
        assert_eq!(put(&bob, 60), Some(1));
        assert_eq!(put(&ann, 40), Some(2), "its own older one made room");
        assert_eq!(put(&cid, 40), None, "nothing of others makes room");
        assert_eq!(put(&ann, 65), None, "more than its share");
        assert_eq!(table.results.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(table.bytes, 100 * MIB);
        table.expire(Now(9));
        assert_eq!((table.bytes, table.principals.len()), (0, 0));
    }

    #[test]
    fn parts_cover_text_at_character_boundaries() {
        let text = "aé漢b".repeat(5);
        let mut all = String::new();
        let mut offset = Some(0);
        while let Some(at) = offset {
            let (part, next) = part_from(&text, at, 4);
            assert!(!part.is_empty() && part.len() <= 4);
            all.push_str(part);
            offset = next;
        }
        assert_eq!(all, text);
    }

    #[test]
    fn result_is_read_as_text_or_json() {
        let one = br#"{"content":[{"type":"text","text":"a\nb"},{"type":"text","text":"c"}]}"#;
        let read = Readable::from_result(one);
        assert_eq!((&*read.text, read.mime), ("a\nb\nc", "text/plain"));
        for other in [
            r#"{"content":[{"type":"image","data":"x"}],"isError":true}"#,
            r#"{"content":[{"type":"text","text":"a"}],"structuredContent":{},"isError":true}"#,
        ] {
            let read = Readable::from_result(other.as_bytes());
            assert_eq!((&*read.text, read.mime), (other, "application/json"));
            assert!(read.is_error);
        }
    }

    #[test]
    fn address_of_earlier_run_names_nothing() {
        let results = KeptResults::new(0xabc);
        let uri = results.uri(7);
        assert_eq!(results.parse(&uri), Some((7, 0)));
        assert_eq!(results.parse(&format!("{uri}?offset=12")), Some((7, 12)));
        let before = KeptResults::new(0xabd).uri(7);
        assert_eq!(results.parse(&before), Some((u64::MAX, 0)));
        for other in ["bowline://results/a://b", "bowline://outbox/7", "file:///a"] {
            assert_eq!(results.parse(other), None, "{other}");
        }
    }
}
