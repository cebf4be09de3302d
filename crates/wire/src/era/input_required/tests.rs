//! Round trips of input requests and responses.

use bowline_testkit::McpSchema;
use serde_json::{Value, json};

use super::*;

const FORM: &[u8] =
    br#"{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"string"}}}}"#;
const URL: &[u8] = br#"{"mode":"url","message":"m","url":"https://a.example/"}"#;

#[test]
fn input_required_round_trips_and_is_valid() {
    let questions = [
        InputRequest {
            key: "a \"key\"",
            method: method::ELICITATION_CREATE,
            params: Some(FORM),
        },
        InputRequest {
            key: "r",
            method: method::ROOTS_LIST,
            params: None,
        },
        InputRequest {
            key: "u",
            method: method::ELICITATION_CREATE,
            params: Some(URL),
        },
    ];
    let written = write_input_required(&questions, Some("opaque \u{1f600}"));
    if let Some(schema) = McpSchema::load("2026-07-28", "input_required_round_trips_and_is_valid") {
        schema.assert_valid_text("InputRequiredResult", &written);
    }
    assert_eq!(
        crate::era::result_translation::result_kind(&written),
        crate::era::result_translation::ResultKind::InputRequired
    );
    let read = InputRequired::parse(&written).unwrap();
    let state = read.state.unwrap().slice(&written);
    assert_eq!(
        object::parse_string(state).as_deref(),
        Some("opaque \u{1f600}")
    );
    assert_eq!(read.requests.len(), questions.len());
    for (read, asked) in read.requests.iter().zip(questions) {
        assert_eq!(read.key, asked.key);
        assert_eq!(read.method, asked.method);
        assert_eq!(read.params.map(|at| at.slice(&written)), asked.params);
        assert!(read.at.slice(&written).starts_with(b"{\"method\""));
    }
    let only_state = write_input_required(&[], Some("s"));
    assert_eq!(
        only_state,
        br#"{"resultType":"input_required","requestState":"s"}"#
    );
}

#[test]
fn invalid_input_required_is_refused() {
    let many: Vec<_> = (0..=QUESTIONS_MAX)
        .map(|number| format!(r#""k{number}":{{"method":"roots/list"}}"#))
        .collect();
    let many = format!(r#"{{"inputRequests":{{{}}}}}"#, many.join(","));
    for (result, want) in [
        ("{}", InputError::Empty),
        ("null", InputError::Empty),
        (r#"{"inputRequests":[]}"#, InputError::Requests),
        (r#"{"inputRequests":{"a":{}}}"#, InputError::Requests),
        (
            r#"{"inputRequests":{"a":{"method":1}}}"#,
            InputError::Requests,
        ),
        (r#"{"requestState":1}"#, InputError::State),
        (&*many, InputError::TooMany),
    ] {
        assert_eq!(
            InputRequired::parse(result.as_bytes()),
            Err(want),
            "{result}"
        );
    }
    assert_eq!(
        InputRequired::parse(br#"{"inputRequests":{}}"#),
        Ok(InputRequired::default())
    );
}

#[test]
fn continuation_round_trips_and_strips() {
    let state = br#""as\u0020written""#;
    let front = write_continuation(
        [("a", &b"{\"action\":\"accept\"}"[..]), ("b\n", b"{}")],
        Some(state),
    );
    for params in [r#"{"name":"x"}"#, "{}", r#"{ "name" : "x" }"#] {
        let text = params.as_bytes();
        let mut editor = ObjectEditor::new(text);
        editor.insert_first(editor.whole(), front.clone());
        let further = editor.finish();
        let round = ContinuationParams::parse(&further);
        assert!(round.is_continuation());
        assert_eq!(round.state.unwrap().slice(&further), state);
        let answers: Vec<_> = round
            .responses
            .iter()
            .map(|(key, at)| (&**key, at.slice(&further)))
            .collect();
        let want = [("a", &b"{\"action\":\"accept\"}"[..]), ("b\n", b"{}")];
        assert_eq!(answers, want);
        assert_eq!(&*strip_continuation(&further), text);
    }
    let first = ContinuationParams::parse(br#"{"arguments":{"requestState":"s"}}"#);
    assert!(!first.is_continuation());
    assert_eq!(first, ContinuationParams::default());
    let without = write_continuation([], None);
    assert_eq!(without.into_object(), br#"{"inputResponses":{}}"#);
}

#[test]
fn url_elicitation_id_exists_in_legacy_only() {
    let elicit = method::ELICITATION_CREATE;
    let legacy = request_to_legacy(elicit, URL, "id-1");
    let value: Value = serde_json::from_slice(&legacy).unwrap();
    assert_eq!(value["elicitationId"], "id-1");
    assert_eq!(&*request_to_modern(elicit, &legacy), URL);
    let own = br#"{"mode":"url","elicitationId":"own"}"#;
    assert_eq!(&*request_to_legacy(elicit, own, "id-1"), own);
    assert_eq!(&*request_to_legacy(elicit, FORM, "id-1"), FORM);
    let sampling = br#"{"messages":[],"maxTokens":1,"task":{"ttl":1}}"#;
    let modern = request_to_modern(method::SAMPLING_CREATE_MESSAGE, sampling);
    assert_eq!(&*modern, br#"{"messages":[],"maxTokens":1}"#);
}

#[test]
fn legacy_url_elicitations_become_input_requests() {
    let error = json!({
        "code": -32042, "message": "open",
        "data": {"elicitations": [
            {"mode": "url", "elicitationId": "1", "url": "https://a.example/", "message": "m"},
            {"mode": "url", "elicitationId": "2", "url": "https://b.example/", "message": "m"},
        ]},
    })
    .to_string();
    let addresses = url_elicitations(error.as_bytes()).unwrap();
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
        assert_eq!(url_elicitations(other.as_bytes()), None, "{other}");
    }
}
