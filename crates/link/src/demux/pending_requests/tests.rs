//! Attribution of server messages, by the calls in flight.

use super::*;

#[derive(Debug)]
struct SessionClient {
    session: u64,
    answers_later: bool,
}

impl ClientHandle for SessionClient {
    fn session(&self) -> SessionKey {
        SessionKey(self.session)
    }

    fn notify(&self, _: Bytes) {}

    fn answers_by_retry(&self) -> bool {
        self.answers_later
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(Self { ..*self })
    }
}

/// Registers calls, a word for each: the session number, `m` for a sessionless client with this
/// number, and `?` for a method without server requests. `want` is the number of the expected call,
/// counted from 1.
fn assert_recipient(calls: &str, want: &str) {
    let mut waiters = PendingRequests::new(16, None);
    for call in calls.split_whitespace() {
        let session = call.trim_end_matches(['m', '?']).parse().unwrap();
        let asked = match call.contains('?') {
            true => method::TASKS_GET,
            false => method::TOOLS_CALL,
        };
        let mut request = LinkRequest::new_internal(asked, Bytes::new(), now());
        request.message.client = Some(Arc::new(SessionClient {
            session,
            answers_later: call.contains('m'),
        }));
        let (waiter, _) = PendingRequest::new(&request);
        waiters.pending.register(waiter).unwrap();
    }
    let found = match waiters.find_recipient(None) {
        Recipient::Client { call, .. } => call.unwrap().to_string(),
        Recipient::Ambiguous => "several".to_owned(),
        Recipient::NoClient => "nobody".to_owned(),
    };
    assert_eq!(found, want, "{calls}");
}

#[test]
fn server_request_belongs_to_newest_session_call() {
    assert_recipient("", "nobody");
    assert_recipient("7", "1");
    assert_recipient("7 7", "2");
    assert_recipient("7 8", "several");
    assert_recipient("7 8?", "several");
}

#[test]
fn server_request_is_ambiguous_between_sessionless_calls() {
    assert_recipient("7m", "1");
    assert_recipient("7m 7m", "several");
    assert_recipient("7m 8m", "several");
    assert_recipient("7m 7m 7m?", "several");
}

#[test]
fn calls_without_input_are_no_recipients() {
    assert_recipient("7 7?", "1");
    assert_recipient("7? 7", "2");
    assert_recipient("7m? 7m 7m?", "2");
    assert_recipient("7?", "1");
    assert_recipient("7? 7?", "2");
}
