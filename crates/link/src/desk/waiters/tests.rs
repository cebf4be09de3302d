//! Whose a word of the server is, by the calls in flight.

use super::*;

#[derive(Debug)]
struct Caller {
    session: u64,
    answers_later: bool,
}

impl CallerEnd for Caller {
    fn session(&self) -> SessionKey {
        SessionKey(self.session)
    }

    fn push(&self, _: Bytes) {}

    fn answers_later(&self) -> bool {
        self.answers_later
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Self { ..*self })
    }
}

/// Puts calls in flight, each a word: a session's number, `m` where it has no session but a
/// client of that number, and `?` where servers do not ask during it. Returns the number of the
/// call that is meant, counted from 1.
fn check(calls: &str, want: &str) {
    let mut waiters = Waiters::new(16, None);
    for call in calls.split_whitespace() {
        let session = call.trim_end_matches(['m', '?']).parse().unwrap();
        let asked = match call.contains('?') {
            true => method::TASKS_GET,
            false => method::TOOLS_CALL,
        };
        let mut request = Request::own(asked, None, now());
        request.caller = Some(Arc::new(Caller {
            session,
            answers_later: call.contains('m'),
        }));
        let (waiter, _) = Waiter::new(&request);
        waiters.pending.register(waiter).unwrap();
    }
    let found = match waiters.whose(None) {
        Whose::Of { call, .. } => call.unwrap().to_string(),
        Whose::Several => "several".to_owned(),
        Whose::Nobody => "nobody".to_owned(),
    };
    assert_eq!(found, want, "{calls}");
}

#[test]
fn a_question_is_of_the_newest_call_of_the_one_session() {
    check("", "nobody");
    check("7", "1");
    check("7 7", "2");
    check("7 8", "several");
    check("7 8?", "several");
}

#[test]
fn a_question_is_of_no_call_where_two_without_a_session_may_be_meant() {
    check("7m", "1");
    check("7m 7m", "several");
    check("7m 8m", "several");
    check("7m 7m 7m?", "several");
}

#[test]
fn requests_during_which_servers_do_not_ask_are_not_meant_beside_others() {
    check("7 7?", "1");
    check("7? 7", "2");
    check("7m? 7m 7m?", "2");
    check("7?", "1");
    check("7? 7?", "2");
}
