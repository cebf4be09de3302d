//! A write as it is stored, and back again.

use std::sync::Arc;

use bowline_core::call::{Call, Principal, Scope, Subject};
use bowline_core::caller::SessionKey;
use bowline_core::era::Era;
use bowline_wire::object;
use bowline_wire::scan::{self, Keys};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::callpath::SentKey;
use crate::who::Who;

/// The form in which records are written.
const VERSION: u32 = 1;

/// What is stored of a write, beside its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    v: u32,
    principal: Who,
    scope: Where,
    pub(super) server: Arc<str>,
    /// The server's own name of the tool.
    pub(super) tool: Arc<str>,
    pub(super) key: Arc<str>,
    /// How long it is worth delivering, in milliseconds.
    pub(super) keep_ms: u64,
    /// Whether its parameters are those of the modern era; absent where they are not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    modern: bool,
    /// Whether its server sees the key bound to its principal; absent in records of gateways that
    /// sent keys as they were.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    scoped: bool,
    /// The session or run within which it keeps its order, empty for neither; absent in records of
    /// gateways that kept one order for all of a principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stream: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Where {
    All,
    Server(Arc<str>),
    Profile(Arc<str>),
}

/// A stored write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) head: Head,
    /// The parameters, key included, under the server's own name of the tool.
    pub(super) params: Bytes,
}

impl Head {
    pub(super) fn new(
        call: &Call,
        (server, tool): (&Arc<str>, &Arc<str>),
        key: &Arc<str>,
        keep_ms: u64,
    ) -> Self {
        Self {
            v: VERSION,
            principal: Who::from(&*call.principal),
            scope: match &call.scope {
                Scope::All => Where::All,
                Scope::Server(server) => Where::Server(Arc::clone(server)),
                Scope::Profile(profile) => Where::Profile(Arc::clone(profile)),
            },
            server: Arc::clone(server),
            tool: Arc::clone(tool),
            key: Arc::clone(key),
            keep_ms,
            modern: call.era() == Era::Modern,
            scoped: true,
            stream: Some(stream_of(call)),
        }
    }

    /// Returns the session or run within which it keeps its order.
    pub(super) fn stream(&self) -> Option<Arc<str>> {
        self.stream.clone()
    }

    pub(super) const fn principal(&self) -> &Arc<str> {
        &self.principal.name
    }

    /// Says which key the write is sent with.
    pub(super) const fn sent_key(&self) -> SentKey {
        match self.scoped {
            true => SentKey::Scoped,
            false => SentKey::AsStored,
        }
    }

    /// Returns who made it and at which endpoint, with all that narrows it.
    pub(super) fn asker(&self) -> (Principal, Scope) {
        let scope = match &self.scope {
            Where::All => Scope::All,
            Where::Server(server) => Scope::Server(Arc::clone(server)),
            Where::Profile(profile) => Scope::Profile(Arc::clone(profile)),
        };
        (self.principal.principal(), scope)
    }

    pub(super) const fn credential(&self) -> &Arc<str> {
        &self.principal.credential
    }
}

/// Names the session of a call, else its run, else nothing. A session that has a lasting id keeps
/// its name when it comes back to life; what is numbered by this process is another after it.
fn stream_of(call: &Call) -> Arc<str> {
    let caller = call
        .caller
        .as_ref()
        .filter(|caller| !caller.answers_later());
    let session = caller.and_then(|caller| {
        let lasting = caller.lasting_id().map(|id| format!("s{id:x}"));
        lasting.or_else(|| {
            let SessionKey(key) = caller.session();
            (key != 0).then(|| format!("p{}.{key}", std::process::id()))
        })
    });
    let run = || call.run.as_ref().map(|run| format!("r{}", run.id));
    session.or_else(run).unwrap_or_default().into()
}

impl Record {
    /// Returns the bytes that are stored: the head with the parameters as its last member.
    pub(super) fn write(&self) -> Bytes {
        // Text, numbers and lists of them can always be written.
        let mut out = serde_json::to_vec(&self.head).unwrap_or_default();
        out.pop();
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(&self.params);
        out.push(b'}');
        out.into()
    }

    /// Reads what [`write`](Self::write) wrote; nothing where it is of another form.
    pub(super) fn read(body: &Bytes) -> Option<Self> {
        let head: Head = serde_json::from_slice(body).ok()?;
        let at = object::field(body, "params").filter(|_| head.v == VERSION)?;
        Some(Self {
            head,
            params: body.slice(at.start..at.end),
        })
    }

    /// Whether its server reads the parameters as we do, though it match names in any case.
    pub(super) fn is_clear(&self) -> bool {
        scan::check(&self.params, Keys::Params).is_ok()
    }

    /// Returns the call that brings it to its server. Nobody listens to what is said on the way.
    pub(super) fn call(&self) -> Call {
        let (principal, scope) = self.head.asker();
        let params = &self.params;
        let name_at = object::field(params, "name").map_or(0..0, |at| at.start..at.end);
        let progress_at = object::field(params, "_meta").and_then(|meta| {
            let token = object::field(meta.of(params), "progressToken")?;
            let token = token.shift(meta.start);
            Some(token.start..token.end)
        });
        Call {
            principal: Arc::new(principal),
            scope,
            subject: Subject::Tool(Arc::clone(&self.head.tool)),
            params: params.clone(),
            name_at,
            makes_task: false,
            progress_at,
            id: Bytes::from_static(b"0"),
            deadline: None,
            caller: None,
            trace: None,
            run: None,
            key: Some(Arc::clone(&self.head.key)),
            // What the headers said was checked when it was stored.
            stateless: self.head.modern.then(Box::default),
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{Contexts, Peer, Role};

    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_and_its_parameters_keep_every_byte() {
        let params = r#"{"name":"do","arguments":{"n": 1.50},"_meta":{"progressToken": 7}}"#;
        for (nth, (role, scope)) in [
            (Role::Owner, Scope::All),
            (Role::OwnersAgent, Scope::All),
            (Role::AnonymousLocal, Scope::Server("s".into())),
            (Role::None, Scope::Profile("p".into())),
            (Role::Named("r".into()), Scope::All),
        ]
        .into_iter()
        .enumerate()
        {
            let principal = Principal {
                name: "ann \"x\"".into(),
                role,
                contexts: Contexts::new(["b", "a"]),
                credential: "c1".into(),
                peer: Peer::default(),
            };
            let asked = Call {
                principal: Arc::new(principal),
                scope,
                subject: Subject::Tool("s__do".into()),
                params: Bytes::new(),
                name_at: 0..0,
                makes_task: false,
                progress_at: None,
                id: Bytes::new(),
                deadline: None,
                caller: None,
                trace: None,
                run: None,
                key: None,
                stateless: nth.is_multiple_of(2).then(Box::default),
            };
            let head = Head::new(&asked, (&"s".into(), &"do".into()), &"k".into(), 5);
            let record = Record {
                head,
                params: Bytes::copy_from_slice(params.as_bytes()),
            };
            let written = record.write();
            // Those of before there were two eras are read as they were.
            let names_era = String::from_utf8_lossy(&written).contains("\"modern\"");
            assert_eq!(names_era, asked.era() == Era::Modern);
            let read = Record::read(&written).unwrap();
            assert_eq!(read, record);
            let call = read.call();
            assert_eq!(*call.principal, *asked.principal);
            assert_eq!(call.scope, asked.scope);
            assert_eq!(call.era(), asked.era());
            assert_eq!(&call.params[call.name_at], b"\"do\"");
            assert_eq!(&call.params[call.progress_at.unwrap()], b"7");
        }
        // A record of before keys were bound to principals keeps the key it was sent with.
        let old = r#"{"v":1,"principal":{"name":"ann","role":"owner"},"scope":"all","server":"s","tool":"do","key":"k","keep_ms":5,"params":{}}"#;
        let old = Record::read(&Bytes::from_static(old.as_bytes())).unwrap();
        assert_eq!(old.head.sent_key(), SentKey::AsStored);
        assert_eq!(
            old.head.stream(),
            None,
            "it keeps its order with all others"
        );
        assert_eq!(Record::read(&Bytes::from_static(b"{\"v\":2}")), None);
        assert_eq!(Record::read(&Bytes::from_static(b"junk")), None);
    }

    #[test]
    fn sec_60_stored_call_with_odd_names_is_not_sent() {
        let call = Call {
            principal: Arc::new(Principal::new("ann", Role::Owner)),
            scope: Scope::All,
            subject: Subject::Tool("do".into()),
            params: Bytes::new(),
            name_at: 0..0,
            makes_task: false,
            progress_at: None,
            id: Bytes::from_static(b"1"),
            deadline: None,
            caller: None,
            trace: None,
            run: None,
            key: None,
            stateless: None,
        };
        let head = Head::new(&call, (&"s".into(), &"do".into()), &"k".into(), 1);
        for (params, want) in [
            (r#"{"name":"do","arguments":{"A":1,"a":2}}"#, true),
            (r#"{"name":"do","Name":"other"}"#, false),
            (
                r#"{"name":"do","_meta":{"dev.bowline/IdempotencyKey":"x"}}"#,
                false,
            ),
        ] {
            let record = Record {
                head: head.clone(),
                params: Bytes::from_static(params.as_bytes()),
            };
            assert_eq!(record.is_clear(), want, "{params}");
        }
    }
}
