//! Server requests waiting for the client of a session.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use bowline_core::client_handle::{ServerRequest, ServerRequestId};
use bowline_core::sync::lock;
use bowline_wire::RpcMessage;
use bowline_wire::splice::replace_span;
use bytes::Bytes;
use foldhash::fast::RandomState;

/// Maximum number of open requests per session; further requests are refused.
pub(super) const SERVER_REQUESTS_MAX: usize = 64;

/// Open requests by the ids assigned here.
#[derive(Debug, Default)]
pub struct ServerRequests(Mutex<ServerRequestsState>);

#[derive(Debug, Default)]
struct ServerRequestsState {
    open: HashMap<u64, PendingServerRequest, RandomState>,
    /// Set when the session ends: no response can arrive.
    closed: bool,
}

#[derive(Debug)]
struct PendingServerRequest {
    request: ServerRequest,
    /// Serial of the call, or of the listen stream.
    owner: u64,
}

impl ServerRequests {
    /// Adds a request; `false` refuses the request, for lack of room.
    #[must_use]
    pub fn insert(&self, id: ServerRequestId, owner: u64, request: ServerRequest) -> bool {
        let refused = {
            let mut state = self.lock_state();
            if state.closed || state.open.len() >= SERVER_REQUESTS_MAX {
                Some(request)
            } else {
                state
                    .open
                    .insert(id.0, PendingServerRequest { request, owner });
                None
            }
        };
        // Dropped, and thereby refused, outside the lock.
        refused.is_none()
    }

    /// Forwards the client's response to the server under the server's own id. A response to an
    /// unknown request is dropped.
    pub fn answer_request(&self, answer: &RpcMessage) {
        let Some(at) = answer.id_span() else { return };
        let Some(open) = parse_id(at.slice(answer.bytes())).and_then(|id| self.take(id)) else {
            return;
        };
        let text = replace_span(answer.bytes(), at, open.request.id());
        open.request.respond(text.into());
    }

    /// Removes and refuses a request; `false` if not open.
    pub fn cancel(&self, id: ServerRequestId) -> bool {
        self.take(id.0).is_some()
    }

    /// Refuses all requests of `owner`.
    pub fn refuse_by_owner(&self, owner: u64) {
        let refused: Vec<_> = {
            let mut state = self.lock_state();
            let owned = state.open.extract_if(|_, open| open.owner == owner);
            owned.collect()
        };
        drop(refused);
    }

    /// Refuses all present and future requests.
    pub fn close(&self) {
        let refused = {
            let mut state = self.lock_state();
            state.closed = true;
            std::mem::take(&mut state.open)
        };
        drop(refused);
    }

    /// Returns whether no request is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock_state().open.is_empty()
    }

    fn take(&self, id: u64) -> Option<PendingServerRequest> {
        self.lock_state().open.remove(&id)
    }

    fn lock_state(&self) -> MutexGuard<'_, ServerRequestsState> {
        lock(&self.0)
    }
}

/// Writes a request under the assigned id; all other bytes stay unchanged.
#[must_use]
pub(super) fn write_request(request: &ServerRequest, id: ServerRequestId) -> Bytes {
    let at = bowline_wire::ByteSpan {
        start: request.id_at.start,
        end: request.id_at.end,
    };
    replace_span(&request.request, at, id.0.to_string().as_bytes()).into()
}

/// Parses an id in exactly the format written here.
fn parse_id(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let id: u64 = text.parse().ok()?;
    (id.to_string() == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bowline_core::client_handle::ClientCapability;

    use super::*;

    const ASKED: &[u8] = br#"{"id" : "s\u0031","method":"roots/list","x":1.0}"#;

    fn test_request() -> (ServerRequest, mpsc::Receiver<Option<Bytes>>) {
        let (told, heard) = mpsc::channel();
        let asked = Bytes::from_static(ASKED);
        let question = ServerRequest::new(asked, 8..17, ClientCapability::Roots, move |answer| {
            // The receiver may be gone.
            let _ = told.send(answer);
        });
        (question, heard)
    }

    fn parse_response(text: &'static str) -> RpcMessage {
        RpcMessage::parse_from_client(text.into()).unwrap()
    }

    #[test]
    fn relay_changes_only_request_id() {
        let questions = ServerRequests::default();
        let (question, heard) = test_request();
        assert_eq!(question.id(), br#""s\u0031""#);
        let text = write_request(&question, ServerRequestId(7));
        assert_eq!(
            text,
            br#"{"id" : 7,"method":"roots/list","x":1.0}"#[..],
            "{text:?}"
        );
        assert!(questions.insert(ServerRequestId(7), 1, question));
        for other in [
            r#"{"jsonrpc":"2.0","id":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":-7,"result":{}}"#,
            r#"{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}"#,
        ] {
            questions.answer_request(&parse_response(other));
            assert!(heard.try_recv().is_err(), "{other}");
        }
        let given = r#"{ "jsonrpc":"2.0","result":{"roots":[],"n":1.00},"id":7 }"#;
        questions.answer_request(&parse_response(given));
        let want = given.replace("\"id\":7", r#""id":"s\u0031""#);
        assert_eq!(heard.try_recv().unwrap().unwrap(), want.as_bytes());
        assert!(questions.is_empty());
        questions.answer_request(&parse_response(given));
        assert!(heard.try_recv().is_err(), "answered twice");
    }

    #[test]
    fn requests_without_room_are_refused() {
        let questions = ServerRequests::default();
        let mut heard = Vec::new();
        for id in 0..SERVER_REQUESTS_MAX as u64 {
            let (question, refused) = test_request();
            assert!(questions.insert(ServerRequestId(id), id % 2, question));
            heard.push(refused);
        }
        let (one_more, refused) = test_request();
        assert!(!questions.insert(ServerRequestId(1_000), 0, one_more));
        assert_eq!(refused.try_recv(), Ok(None));
        questions.refuse_by_owner(1);
        for (id, refused) in heard.iter().enumerate() {
            assert_eq!(refused.try_recv().is_ok(), id % 2 == 1, "{id}");
        }
        assert!(questions.cancel(ServerRequestId(0)));
        assert!(!questions.cancel(ServerRequestId(0)));
        questions.close();
        assert!(questions.is_empty());
        let (late, refused) = test_request();
        assert!(!questions.insert(ServerRequestId(2), 0, late));
        assert_eq!(refused.try_recv(), Ok(None));
    }
}
