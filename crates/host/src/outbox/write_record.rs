//! Storage format of a write.

use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject, EndpointScope, Principal, RequestMessage};
use bowline_core::client_handle::SessionKey;
use bowline_core::era::Era;
use bowline_wire::object;
use bowline_wire::scan::{self, KeyPolicy};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::callpath::ReplayKey;
use bowline_journal::PrincipalRecord;

/// Format version.
const FORMAT_VERSION: u32 = 1;

/// Stored metadata of a write, besides its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WriteHead {
    v: u32,
    principal: PrincipalRecord,
    scope: ScopeRecord,
    pub(super) server: Arc<str>,
    /// The server's own tool name.
    pub(super) tool: Arc<str>,
    pub(super) key: Arc<str>,
    /// Lifetime in milliseconds.
    pub(super) keep_ms: u64,
    /// True for modern parameters; omitted otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    modern: bool,
    /// True if the server receives the key bound to its principal; missing in records of gateways
    /// that sent keys unchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    scoped: bool,
    /// The session or run that keeps its order, empty for neither; missing in records of gateways
    /// with a single order per principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stream: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScopeRecord {
    All,
    Server(Arc<str>),
    Profile(Arc<str>),
}

/// A stored write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WriteRecord {
    pub(super) head: WriteHead,
    /// The parameters with the key and the server's own tool name.
    pub(super) params: Bytes,
}

impl WriteHead {
    pub(super) fn new(
        call: &CallRequest,
        server: &Arc<str>,
        tool: &Arc<str>,
        key: &Arc<str>,
        keep_ms: u64,
    ) -> Self {
        Self {
            v: FORMAT_VERSION,
            principal: PrincipalRecord::from(&*call.principal),
            scope: match &call.scope {
                EndpointScope::All => ScopeRecord::All,
                EndpointScope::Server(server) => ScopeRecord::Server(Arc::clone(server)),
                EndpointScope::Profile(profile) => ScopeRecord::Profile(Arc::clone(profile)),
            },
            server: Arc::clone(server),
            tool: Arc::clone(tool),
            key: Arc::clone(key),
            keep_ms,
            modern: call.message.era == Era::Modern,
            scoped: true,
            stream: Some(call_stream(call)),
        }
    }

    /// Returns the session or run that keeps its order.
    pub(super) fn stream(&self) -> Option<Arc<str>> {
        self.stream.clone()
    }

    pub(super) const fn principal(&self) -> &Arc<str> {
        &self.principal.name
    }

    /// Returns the key to send the write with.
    pub(super) const fn replay_key(&self) -> ReplayKey {
        match self.scoped {
            true => ReplayKey::Scoped,
            false => ReplayKey::AsStored,
        }
    }

    /// Returns principal and endpoint, with all restrictions.
    pub(super) fn principal_and_scope(&self) -> (Principal, EndpointScope) {
        let scope = match &self.scope {
            ScopeRecord::All => EndpointScope::All,
            ScopeRecord::Server(server) => EndpointScope::Server(Arc::clone(server)),
            ScopeRecord::Profile(profile) => EndpointScope::Profile(Arc::clone(profile)),
        };
        (self.principal.to_principal(), scope)
    }

    pub(super) const fn credential(&self) -> &Arc<str> {
        &self.principal.credential
    }
}

/// Returns the stream of a call: its session, else its run, else empty. A session with a persistent
/// id keeps its stream after a restart; a session numbered by this process does not.
fn call_stream(call: &CallRequest) -> Arc<str> {
    let caller = call
        .message
        .client
        .as_ref()
        .filter(|caller| !caller.answers_by_retry());
    let session = caller.and_then(|caller| {
        let lasting = caller.durable_id().map(|id| format!("s{id:x}"));
        lasting.or_else(|| {
            let SessionKey(key) = caller.session();
            (key != 0).then(|| format!("p{}.{key}", std::process::id()))
        })
    });
    let run = || call.run.as_ref().map(|run| format!("r{}", run.id));
    session.or_else(run).unwrap_or_default().into()
}

impl WriteRecord {
    /// Serializes the record: the head with the parameters as last member.
    pub(super) fn to_bytes(&self) -> Bytes {
        // Strings, numbers and lists always serialize.
        let mut out = serde_json::to_vec(&self.head).unwrap_or_default();
        out.pop();
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(&self.params);
        out.push(b'}');
        out.into()
    }

    /// Parses the format of [`to_bytes`](Self::to_bytes); `None` for an unknown format.
    pub(super) fn parse(body: &Bytes) -> Option<Self> {
        let head: WriteHead = serde_json::from_slice(body).ok()?;
        let at = object::field(body, "params").filter(|_| head.v == FORMAT_VERSION)?;
        Some(Self {
            head,
            params: body.slice(at.start..at.end),
        })
    }

    /// True if the parameters are unambiguous even for a server with case-insensitive names.
    pub(super) fn is_unambiguous(&self) -> bool {
        scan::check_json(&self.params, KeyPolicy::Params).is_ok()
    }

    /// Returns the call for delivery. It has no client handle.
    pub(super) fn to_call(&self) -> CallRequest {
        let (principal, scope) = self.head.principal_and_scope();
        let params = &self.params;
        let name_at = object::field(params, "name").map_or(0..0, |at| at.start..at.end);
        let progress_at = object::field(params, "_meta").and_then(|meta| {
            let token = object::field(meta.slice(params), "progressToken")?;
            let token = token.shift(meta.start);
            Some(token.start..token.end)
        });
        CallRequest {
            principal: Arc::new(principal),
            scope,
            subject: CallSubject::Tool(Arc::clone(&self.head.tool)),
            name_at,
            wants_task: false,
            deadline: None,
            run: None,
            idempotency_key: Some(Arc::clone(&self.head.key)),
            // Headers were checked on entry.
            stateless: self.head.modern.then(Box::default),
            message: RequestMessage {
                progress_at,
                era: if self.head.modern {
                    Era::Modern
                } else {
                    Era::Legacy
                },
                ..RequestMessage::new(params.clone())
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{ContextSet, PeerAddress, Role};

    use super::*;

    #[test]
    fn record_roundtrips_with_unchanged_params() {
        let params = r#"{"name":"do","arguments":{"n": 1.50},"_meta":{"progressToken": 7}}"#;
        for (nth, (role, scope)) in [
            (Role::Owner, EndpointScope::All),
            (Role::OwnersAgent, EndpointScope::All),
            (Role::AnonymousLocal, EndpointScope::Server("s".into())),
            (Role::None, EndpointScope::Profile("p".into())),
            (Role::Named("r".into()), EndpointScope::All),
        ]
        .into_iter()
        .enumerate()
        {
            let principal = Principal {
                name: "ann \"x\"".into(),
                role,
                contexts: ContextSet::new(["b", "a"]),
                credential: "c1".into(),
                peer: PeerAddress::default(),
            };
            let asked = CallRequest {
                principal: Arc::new(principal),
                scope,
                subject: CallSubject::Tool("s__do".into()),
                name_at: 0..0,
                wants_task: false,
                deadline: None,
                run: None,
                idempotency_key: None,
                stateless: nth.is_multiple_of(2).then(Box::default),
                message: RequestMessage {
                    era: [Era::Modern, Era::Legacy][nth % 2],
                    ..RequestMessage::new(Bytes::new())
                },
            };
            let head = WriteHead::new(&asked, &"s".into(), &"do".into(), &"k".into(), 5);
            let record = WriteRecord {
                head,
                params: Bytes::copy_from_slice(params.as_bytes()),
            };
            let written = record.to_bytes();
            // Records from before the eras parse unchanged.
            let names_era = String::from_utf8_lossy(&written).contains("\"modern\"");
            assert_eq!(names_era, asked.message.era == Era::Modern);
            let read = WriteRecord::parse(&written).unwrap();
            assert_eq!(read, record);
            let call = read.to_call();
            assert_eq!(*call.principal, *asked.principal);
            assert_eq!(call.scope, asked.scope);
            assert_eq!(call.message.era, asked.message.era);
            assert_eq!(&call.message.params[call.name_at], b"\"do\"");
            assert_eq!(
                &call.message.params[call.message.progress_at.unwrap()],
                b"7"
            );
        }
        // A record from before scoped keys keeps the key it was sent with.
        let old = r#"{"v":1,"principal":{"name":"ann","role":"owner"},"scope":"all","server":"s","tool":"do","key":"k","keep_ms":5,"params":{}}"#;
        let old = WriteRecord::parse(&Bytes::from_static(old.as_bytes())).unwrap();
        assert_eq!(old.head.replay_key(), ReplayKey::AsStored);
        assert_eq!(
            old.head.stream(),
            None,
            "it keeps its order with all others"
        );
        assert_eq!(WriteRecord::parse(&Bytes::from_static(b"{\"v\":2}")), None);
        assert_eq!(WriteRecord::parse(&Bytes::from_static(b"junk")), None);
    }

    #[test]
    fn sec_60_stored_call_with_ambiguous_names_fails() {
        let call = CallRequest {
            principal: Arc::new(Principal::new("ann", Role::Owner)),
            scope: EndpointScope::All,
            subject: CallSubject::Tool("do".into()),
            name_at: 0..0,
            wants_task: false,
            deadline: None,
            run: None,
            idempotency_key: None,
            stateless: None,
            message: RequestMessage {
                params: Bytes::new(),
                progress_at: None,
                id: Bytes::from_static(b"1"),
                client: None,
                trace: None,
                era: Era::Legacy,
            },
        };
        let head = WriteHead::new(&call, &"s".into(), &"do".into(), &"k".into(), 1);
        for (params, want) in [
            (r#"{"name":"do","arguments":{"A":1,"a":2}}"#, true),
            (r#"{"name":"do","Name":"other"}"#, false),
            (
                r#"{"name":"do","_meta":{"dev.bowline/IdempotencyKey":"x"}}"#,
                false,
            ),
        ] {
            let record = WriteRecord {
                head: head.clone(),
                params: Bytes::from_static(params.as_bytes()),
            };
            assert_eq!(record.is_unambiguous(), want, "{params}");
        }
    }
}
