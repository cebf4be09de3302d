//! Questions and answers, written and read back.

use serde_json::{Value, json};

use super::*;
use crate::testing::schema::Schema;

const FORM: &[u8] =
    br#"{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"string"}}}}"#;
const URL: &[u8] = br#"{"mode":"url","message":"m","url":"https://a.example/"}"#;

#[test]
fn what_is_asked_reads_back_and_is_valid() {
    let questions = [
        Ask {
            key: "a \"key\"",
            method: method::ELICITATION_CREATE,
            params: Some(FORM),
        },
        Ask {
            key: "r",
            method: method::ROOTS_LIST,
            params: None,
        },
        Ask {
            key: "u",
            method: method::ELICITATION_CREATE,
            params: Some(URL),
        },
    ];
    let written = required(&questions, Some("opaque \u{1f600}"));
    if let Some(schema) = Schema::load("2026-07-28", "what_is_asked_reads_back_and_is_valid") {
        schema.check("InputRequiredResult", &written);
    }
    assert_eq!(
        crate::era::result::kind(&written),
        crate::era::result::ResultKind::InputRequired
    );
    let read = Required::read(&written).unwrap();
    let state = read.state.unwrap().of(&written);
    assert_eq!(object::string(state).as_deref(), Some("opaque \u{1f600}"));
    assert_eq!(read.asked.len(), questions.len());
    for (read, asked) in read.asked.iter().zip(questions) {
        assert_eq!(read.key, asked.key);
        assert_eq!(read.method, asked.method);
        assert_eq!(read.params.map(|at| at.of(&written)), asked.params);
        assert!(read.at.of(&written).starts_with(b"{\"method\""));
    }
    let only_state = required(&[], Some("s"));
    assert_eq!(
        only_state,
        br#"{"resultType":"input_required","requestState":"s"}"#
    );
}

#[test]
fn what_asks_nothing_that_can_be_understood_is_an_error() {
    let many: Vec<_> = (0..=QUESTIONS_MAX)
        .map(|number| format!(r#""k{number}":{{"method":"roots/list"}}"#))
        .collect();
    let many = format!(r#"{{"inputRequests":{{{}}}}}"#, many.join(","));
    for (result, want) in [
        ("{}", BadInput::Empty),
        ("null", BadInput::Empty),
        (r#"{"inputRequests":[]}"#, BadInput::Requests),
        (r#"{"inputRequests":{"a":{}}}"#, BadInput::Requests),
        (
            r#"{"inputRequests":{"a":{"method":1}}}"#,
            BadInput::Requests,
        ),
        (r#"{"requestState":1}"#, BadInput::State),
        (&*many, BadInput::TooMany),
    ] {
        assert_eq!(Required::read(result.as_bytes()), Err(want), "{result}");
    }
    assert_eq!(
        Required::read(br#"{"inputRequests":{}}"#),
        Ok(Required::default())
    );
}

#[test]
fn a_further_round_reads_back_and_is_taken_out_again() {
    let state = br#""as\u0020written""#;
    let front = further_round(
        [("a", &b"{\"action\":\"accept\"}"[..]), ("b\n", b"{}")],
        Some(state),
    );
    for params in [r#"{"name":"x"}"#, "{}", r#"{ "name" : "x" }"#] {
        let mut changes = Vec::new();
        let text = params.as_bytes();
        rewrite(
            text,
            whole(text),
            front.clone(),
            |_, _| Fate::Stays,
            &mut changes,
        );
        let further = applied(text, &mut changes);
        let round = Round::read(&further);
        assert!(round.is_further());
        assert_eq!(round.state.unwrap().of(&further), state);
        let answers: Vec<_> = round
            .answers
            .iter()
            .map(|(key, at)| (&**key, at.of(&further)))
            .collect();
        let want = [("a", &b"{\"action\":\"accept\"}"[..]), ("b\n", b"{}")];
        assert_eq!(answers, want);
        assert_eq!(&*first_round(&further), text);
    }
    let first = Round::read(br#"{"arguments":{"requestState":"s"}}"#);
    assert!(!first.is_further());
    assert_eq!(first, Round::default());
    let without = further_round([], None);
    assert_eq!(without, br#""inputResponses":{}"#);
}

#[test]
fn an_address_has_an_id_in_the_one_era_and_none_in_the_other() {
    let elicit = method::ELICITATION_CREATE;
    let legacy = question_to_legacy(elicit, URL, "id-1");
    let value: Value = serde_json::from_slice(&legacy).unwrap();
    assert_eq!(value["elicitationId"], "id-1");
    assert_eq!(&*question_to_modern(elicit, &legacy), URL);
    let own = br#"{"mode":"url","elicitationId":"own"}"#;
    assert_eq!(&*question_to_legacy(elicit, own, "id-1"), own);
    assert_eq!(&*question_to_legacy(elicit, FORM, "id-1"), FORM);
    let sampling = br#"{"messages":[],"maxTokens":1,"task":{"ttl":1}}"#;
    let modern = question_to_modern(method::SAMPLING_CREATE_MESSAGE, sampling);
    assert_eq!(&*modern, br#"{"messages":[],"maxTokens":1}"#);
}

#[test]
fn addresses_that_a_legacy_server_wants_opened_are_questions() {
    let error = json!({
        "code": -32042, "message": "open",
        "data": {"elicitations": [
            {"mode": "url", "elicitationId": "1", "url": "https://a.example/", "message": "m"},
            {"mode": "url", "elicitationId": "2", "url": "https://b.example/", "message": "m"},
        ]},
    })
    .to_string();
    let addresses = addresses(error.as_bytes()).unwrap();
    let texts: Vec<Value> = addresses
        .iter()
        .map(|text| serde_json::from_slice(text).unwrap())
        .collect();
    let want = json!([
        {"mode": "url", "url": "https://a.example/", "message": "m"},
        {"mode": "url", "url": "https://b.example/", "message": "m"},
    ]);
    assert_eq!(json!(texts), want);
    for other in [
        r#"{"code":-32603,"message":"m","data":{"elicitations":[{"mode":"url"}]}}"#,
        r#"{"code":-32042,"message":"m"}"#,
        r#"{"code":-32042,"message":"m","data":{"elicitations":[]}}"#,
        r#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"form"}]}}"#,
    ] {
        assert_eq!(super::addresses(other.as_bytes()), None, "{other}");
    }
}
