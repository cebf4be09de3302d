//! What servers say and ask reaches the round that the caller waits in, and nobody waits for ever.

use std::sync::mpsc;

use bowline_core::call::{Principal, Role, Scope};
use bowline_core::time::Now;

use super::*;
use crate::edge::modern::client::Clients;
use crate::edge::session::Sessions;

fn wants() -> Wants {
    Wants {
        abilities: Abilities::default()
            .with(Ability::Roots)
            .with(Ability::ElicitationForm),
        level: Some(Level::Warning),
        token: Some(Bytes::from_static(b"\"t\"")),
    }
}

fn begun() -> (Arc<End>, Arc<Round>, oneshot::Receiver<()>) {
    let ann = Principal::new("ann", Role::Owner);
    let (clients, sessions) = (Clients::default(), Sessions::new(&[1; 32]));
    let what = (Abilities::default(), &b""[..]);
    let (client, _) = clients.enter(&sessions, (&ann, &Scope::All), what, Now(0));
    End::new(client, wants())
}

fn question(id: &str, ability: Ability) -> (Question, mpsc::Receiver<Option<Bytes>>) {
    let (told, heard) = mpsc::channel();
    let text = format!(r#"{{"id":{id},"method":"roots/list"}}"#);
    let question = Question::new(text.into(), 6..6 + id.len(), ability, move |answer| {
        told.send(answer).unwrap();
    });
    (question, heard)
}

fn keys(end: &End) -> Vec<String> {
    let mut keys = Vec::new();
    end.each_open(|key, _| keys.push(key.to_owned()));
    keys
}

fn said(round: &Round) -> Vec<String> {
    let reader = round.line.read();
    let mut cx = Context::from_waker(Waker::noop());
    let mut said = Vec::new();
    while let Poll::Ready(crate::edge::stream::Next::Message(_, text)) =
        round.line.poll_next(reader, &mut cx)
    {
        said.push(String::from_utf8(text.to_vec()).unwrap());
    }
    said
}

#[test]
fn a_question_is_answered_under_its_key_and_once() {
    let (end, ..) = begun();
    let (by_word, word) = question("\"who\"", Ability::Roots);
    let (by_number, number) = question("7", Ability::Roots);
    let (same_word, same) = question("\"who\"", Ability::Roots);
    for asked in [by_word, by_number, same_word] {
        assert!(end.ask(asked).is_some());
    }
    assert_eq!(keys(&end), ["who", "ask-2", "ask-3"]);
    end.answer("nobody", b"{}");
    end.answer("ask-2", br#"{"a":1.0}"#);
    let answer = number.try_recv().unwrap().unwrap();
    assert_eq!(answer, r#"{"jsonrpc":"2.0","id":7,"result":{"a":1.0}}"#);
    end.answer("ask-2", b"{}");
    assert!(number.try_recv().is_err(), "answered twice");
    end.answer("who", b"{}");
    assert!(word.try_recv().unwrap().is_some() && end.is_asked());
    // What is left is refused with the end of the call.
    end.finish(Err(CallError::ShuttingDown));
    assert_eq!(same.try_recv(), Ok(None));
    let (late, refused) = question("8", Ability::Roots);
    assert_eq!(end.ask(late), None);
    assert_eq!(refused.try_recv(), Ok(None));
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let (end, _, mut cancelled) = begun();
    let (undeclared, refused) = question("1", Ability::Sampling);
    assert_eq!(end.ask(undeclared), None);
    assert_eq!(refused.try_recv(), Ok(None));
    let mut open = Vec::new();
    for nth in 0..QUESTIONS_MAX {
        let (asked, heard) = question(&nth.to_string(), Ability::Roots);
        assert!(end.ask(asked).is_some());
        open.push(heard);
    }
    let (one_more, refused) = question("99", Ability::Roots);
    assert_eq!(end.ask(one_more), None);
    assert_eq!(refused.try_recv(), Ok(None));
    end.withdraw(QuestionId(1));
    assert_eq!(open[0].try_recv(), Ok(None));
    assert!(open[1].try_recv().is_err());
    end.cancel();
    assert_eq!(cancelled.try_recv(), Ok(()));
    assert!(open[1..].iter().all(|heard| heard.try_recv() == Ok(None)));
}

#[test]
fn a_round_hears_what_its_request_asked_for() {
    let log = |level: &str| {
        let params = format!(r#"{{"level":"{level}","data":1}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{params}}}"#)
    };
    let progress = |token: &str| {
        let params = format!(r#"{{"progressToken":{token},"progress":1}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
    };
    let done = r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{}}"#;
    let (end, first, _cancelled) = begun();
    for text in [
        log("info"),
        log("error"),
        progress("\"t\""),
        done.to_owned(),
    ] {
        end.push(text.into());
    }
    assert_eq!(said(&first), [log("error"), progress("\"t\"")]);
    // The next request has a token of its own, or none, and a level of its own, or none.
    let second = end.again(Wants {
        token: Some(Bytes::from_static(b"2")),
        level: None,
        ..wants()
    });
    end.push(progress("\"t\"").into());
    end.push(log("emergency").into());
    assert_eq!(said(&second), [progress("2")]);
    let third = end.again(Wants {
        token: None,
        ..wants()
    });
    end.push(progress("\"t\"").into());
    assert!(said(&third).is_empty() && said(&first).is_empty());
}

#[test]
fn who_leaves_before_the_answer_takes_the_call_back() {
    let (_end, round, mut cancelled) = begun();
    let reader = round.line.read();
    round.line.finish("answer".into());
    round.left(reader, Told::Something);
    assert!(cancelled.try_recv().is_err(), "it was answered");
    let (_end, round, mut cancelled) = begun();
    let reader = round.line.read();
    round.left(reader, Told::Nothing);
    assert_eq!(cancelled.try_recv(), Ok(()));
}
