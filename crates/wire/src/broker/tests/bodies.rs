//! What is asked and what is answered, in our names and in the first ones.

use std::time::Duration;

use bowline_core::caller::{Abilities, Ability};
use bowline_core::era::Era;
use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_core::level::Level;
use bowline_core::trace::Trace;

use super::*;

fn ask(body: &str) -> Result<Ask, FrameError> {
    Ask::read(&Bytes::copy_from_slice(body.as_bytes()))
}

fn answer(body: &str) -> Result<Answer, FrameError> {
    Answer::read(&Bytes::copy_from_slice(body.as_bytes()))
}

fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    crate::splice::write_string(&mut out, text);
    String::from_utf8(out).unwrap()
}

#[test]
fn arguments_come_out_byte_for_byte_whether_they_came_as_text_or_as_an_object() {
    let exact = r#"{"n": 1.50e+3, "big":12345678901234567890123,"é":"\u00e9\n\ud83d\ude00" }"#;
    for arguments in [
        exact.to_owned(),
        quoted(exact),
        quoted(&format!(" {exact}\n")),
    ] {
        let body = format!(r#"{{"op":"call","tool":"t","arguments":{arguments}}}"#);
        let Ok(Ask::Call { arguments, .. }) = ask(&body) else {
            panic!("no call: {body}");
        };
        assert_eq!(arguments, Arguments::Object(exact.into()));
    }
    // One level of quotes is taken off, never two.
    let twice = r#"{"a":"{\"b\":1}"}"#;
    let body = format!(
        r#"{{"op":"call","tool":"t","arguments":{}}}"#,
        quoted(twice)
    );
    let Ok(Ask::Call { arguments, .. }) = ask(&body) else {
        panic!("no call");
    };
    assert_eq!(arguments, Arguments::Object(twice.into()));
}

#[test]
fn arguments_that_are_no_json_object_are_refused_at_once() {
    for arguments in [
        quoted("{"),
        quoted("{}x"),
        quoted("{'a':1}"),
        quoted(r#"{"a":1,"a":2}"#),
        quoted(r#"{"a":{"b":1,"\u0062":2}}"#),
        quoted("[]"),
        quoted("null"),
        quoted("7"),
        quoted(&quoted("{}")),
        r#""{\"a\":\ud800}""#.to_owned(),
        r#""\ud800""#.to_owned(),
        r#"{"a":{"b":1,"b":2}}"#.to_owned(),
        "[]".to_owned(),
        "7".to_owned(),
        "true".to_owned(),
    ] {
        let body = format!(r#"{{"op":"call","tool":"t","arguments":{arguments}}}"#);
        let refused = Err(FrameError::Member("arguments"));
        assert_eq!(ask(&body), refused, "{arguments}");
    }
    for (body, why) in [
        ("null", FrameError::NoObject),
        ("{}", FrameError::Member("op")),
        (r#"{"op":"drop"}"#, FrameError::Member("op")),
        (r#"{"op":"call"}"#, FrameError::Member("tool")),
        (
            r#"{"op":"call","tool":"a","tool":"b"}"#,
            FrameError::NoObject,
        ),
        (
            r#"{"op":"call","tool":"a","params":{},"arguments":{}}"#,
            FrameError::Member("arguments"),
        ),
        (
            r#"{"op":"call","tool":"a","params":[]}"#,
            FrameError::Member("params"),
        ),
        (
            r#"{"op":"call","tool":"a","server":1}"#,
            FrameError::Member("server"),
        ),
    ] {
        assert_eq!(ask(body), Err(why), "{body}");
    }
}

fn told(context: Context) -> Arguments {
    let params = Bytes::from_static(br#"{"name":"t","arguments":{}}"#);
    Arguments::Told(Box::new(Told { params, context }))
}

fn mcp(params: Option<Bytes>, context: Context) -> Ask {
    Ask::Mcp {
        server: "s".into(),
        method: "resources/read".into(),
        params,
        context,
    }
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn spoken() -> Context {
    Context {
        session: Some("n-1".into()),
        abilities: Ability::ALL
            .into_iter()
            .fold(Abilities::default(), Abilities::with),
        level: Some(Level::Notice),
        era: Era::Modern,
        run: Some("run-1".into()),
        trace: Trace::read(PARENT, Some("a=1")).map(Box::new),
    }
}

#[test]
fn what_is_not_known_of_who_asks_is_skipped_and_an_era_that_is_not_known_is_refused() {
    let read = |mcp: &str| {
        let body = format!(r#"{{"op":"mcp","server":"s","method":"m","mcp":{mcp}}}"#);
        ask(&body).map(|asked| asked.context().cloned())
    };
    let known = read(r#"{"can":["telepathy","roots",1],"level":"loud","x":1}"#);
    let want = Context {
        abilities: Abilities::default().with(Ability::Roots),
        ..Context::default()
    };
    assert_eq!(known, Ok(Some(want)));
    assert_eq!(read(r#"{"era":"next"}"#), Err(FrameError::Member("era")));
    assert_eq!(read("[]"), Err(FrameError::Member("mcp")));
    let long = format!(r#"{{"session":"{}"}}"#, "s".repeat(200));
    assert_eq!(read(&long), Err(FrameError::Member("session")));
    let long = format!(r#"{{"run":"{}"}}"#, "r".repeat(200));
    assert_eq!(read(&long), Err(FrameError::Member("run")));
    let no_trace = read(r#"{"traceparent":"00-0-0-00","tracestate":7}"#);
    assert_eq!(no_trace, Ok(Some(Context::default())));
    let plain = ask(r#"{"op":"call","tool":"t","arguments":{}}"#).unwrap();
    assert_eq!(plain.context(), None);
}

#[test]
fn every_ask_reads_back_as_it_was_written() {
    let call = |arguments| Ask::Call {
        tool: "t\"".into(),
        server: Some("s".into()),
        arguments,
    };
    for asked in [
        Ask::Manifest,
        call(Arguments::None),
        call(Arguments::Object(Bytes::from_static(b"{ }"))),
        call(Arguments::Params(Bytes::from_static(
            br#"{"name":"t","_meta":{"k":1.0}}"#,
        ))),
        call(told(Context::default())),
        call(told(spoken())),
        mcp(None, Context::default()),
        mcp(Some(Bytes::from_static(br#"{"uri":"a://b"}"#)), spoken()),
    ] {
        assert_eq!(Ask::read(&asked.to_bytes()), Ok(asked));
    }
    for nothing in ["null", "\"\"", "\" \\n\""] {
        let body = format!(r#"{{"op":"call","tool":"t","arguments":{nothing}}}"#);
        let Ok(Ask::Call { arguments, .. }) = ask(&body) else {
            panic!("no call: {body}");
        };
        assert_eq!(arguments, Arguments::None);
    }
    assert_eq!(
        call(Arguments::Object(Bytes::from_static(b"{}"))).to_bytes(),
        &br#"{"op":"call","tool":"t\"","server":"s","arguments":{}}"#[..]
    );
}

fn failure(retry: Retry) -> Answer {
    Answer::Failed(Failure {
        class: Class::Throttled,
        execution: Execution::NotStarted,
        retry,
        origin: Origin::Policy,
        code: "too_fast".into(),
        reason: "slow \"down\"".into(),
    })
}

pub(super) fn answers() -> Vec<Answer> {
    vec![
        Answer::Output {
            result: Bytes::from_static(
                br#"{"content":[{"type":"text","text":"a"}, {"type":"text","text":"b"}],"isError":true,"_meta":{"n":1.50}}"#,
            ),
            again: true,
            era: Era::Legacy,
        },
        Answer::Output {
            result: Bytes::from_static(br#"{"content":[],"structuredContent":{"n":1}}"#),
            again: false,
            era: Era::Legacy,
        },
        Answer::Rpc {
            error: Bytes::from_static(br#"{"code":-32602,"message":"bad","data":[1e0]}"#),
            era: Era::Legacy,
        },
        failure(Retry::Never),
        failure(Retry::Safe),
        failure(Retry::After(Duration::from_millis(1_500))),
        Answer::Manifest {
            items: Vec::new(),
            revision: 0,
        },
        Answer::Manifest {
            items: vec![
                Item {
                    name: "files__read".into(),
                    server: Some("files".into()),
                    tool: Some("read".into()),
                    repeatable: true,
                    definition: Bytes::from_static(
                        br#"{"name":"files__read","description":"r","inputSchema":{"type":"object"},"x":1}"#,
                    ),
                },
                Item {
                    name: "b".into(),
                    server: None,
                    tool: None,
                    repeatable: false,
                    definition: Bytes::from_static(br#"{"name":"b"}"#),
                },
            ],
            revision: 7,
        },
        Answer::Output {
            result: Bytes::from_static(br#"{"content":[],"resultType":"complete"}"#),
            again: true,
            era: Era::Modern,
        },
        Answer::Rpc {
            error: Bytes::from_static(br#"{"code":-32022,"message":"old"}"#),
            era: Era::Modern,
        },
    ]
}

#[test]
fn every_answer_reads_back_as_it_was_written_in_both_forms() {
    for answer in answers() {
        for said in [Said::Whole, Said::Brief] {
            let body = answer.to_bytes(said);
            assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
            assert_eq!(Answer::read(&body).as_ref(), Ok(&answer), "{body:?}");
        }
    }
}

#[test]
fn answers_are_written_in_the_first_names_too() {
    let whole: Vec<String> = answers()
        .iter()
        .map(|answer| String::from_utf8(answer.to_bytes(Said::Whole).to_vec()).unwrap())
        .collect();
    assert!(whole[0].starts_with(r#"{"result":{"success":false,"result":"a\nb","output":{"#));
    assert!(whole[1].starts_with(r#"{"result":{"success":true,"result":"{\"content\":[],"#));
    assert_eq!(
        whole[2],
        r#"{"error":"bad","failure":{"class":"protocol_error","execution":"completed","retry":"never","origin":"upstream","rpc":{"code":-32602,"message":"bad","data":[1e0]}}}"#
    );
    assert_eq!(
        whole[5],
        r#"{"error":"slow \"down\"","failure":{"class":"throttled","execution":"not_started","retry":"after","retry_after_ms":1500,"origin":"policy","code":"too_fast"}}"#
    );
    assert_eq!(
        whole[7],
        r#"{"manifest":[{"type":"function","function":{"name":"files__read","description":"r","parameters":{"type":"object"}},"server":"files","tool":"read","repeatable":true,"definition":{"name":"files__read","description":"r","inputSchema":{"type":"object"},"x":1}},{"type":"function","function":{"name":"b","description":"","parameters":{"type":"object"}},"repeatable":false,"definition":{"name":"b"}}],"revision":7}"#
    );
    let brief = answers()[1].to_bytes(Said::Brief);
    assert_eq!(
        brief,
        &br#"{"output":{"content":[],"structuredContent":{"n":1}}}"#[..]
    );
}

#[test]
fn the_largest_result_fits_into_a_frame_in_both_forms() {
    let text = "x".repeat(8 * 1024 * 1024 - 100);
    let result = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    let answer = Answer::Output {
        result: result.into(),
        again: true,
        era: Era::Legacy,
    };
    for said in [Said::Whole, Said::Brief] {
        let letter = Letter::new(&Draft {
            id: "1",
            kind: REPLY,
            body: &answer.to_bytes(said),
            correlation_id: Some("1"),
            ttl_ms: None,
            created_at_ms: 0,
        });
        let frame = Frame::Message(letter.stamped(&from())).to_bytes();
        assert!(frame.len() <= FRAME_BYTES_MAX);
        let Ok(Frame::Message(came)) = Frame::read(&frame) else {
            panic!("no message");
        };
        assert_eq!(Answer::read(&came.body).as_ref(), Ok(&answer));
    }
}

#[test]
fn a_live_answer_is_the_same_frame_whether_written_in_one_go_or_in_two() {
    for answer in answers() {
        let two = Frame::Response {
            id: "1\"".into(),
            body: answer.to_bytes(Said::Brief),
        };
        assert_eq!(answer.response("1\""), two.to_bytes());
    }
}

#[test]
fn a_reply_in_the_first_names_alone_is_understood_and_its_two_channels_stay_apart() {
    for (body, result) in [
        (
            r#"{"result":{"success":true,"result":"3 \"x\""}}"#,
            r#"{"content":[{"type":"text","text":"3 \"x\""}]}"#,
        ),
        (
            r#"{"result":{"success":false,"result":"no"},"error":null,"manifest":null}"#,
            r#"{"content":[{"type":"text","text":"no"}],"isError":true}"#,
        ),
    ] {
        let want = Answer::Output {
            result: result.into(),
            again: false,
            era: Era::Legacy,
        };
        assert_eq!(answer(body), Ok(want));
    }
    let Ok(Answer::Failed(failure)) = answer(r#"{"error":"role r may not call t"}"#) else {
        panic!("no failure");
    };
    assert_eq!(&*failure.reason, "role r may not call t");
    assert_eq!(failure.execution, Execution::Unknown);
    assert_eq!(failure.retry, Retry::Never);
    assert_eq!(failure.origin, Origin::Broker);
    let manifest = r#"{"manifest":[{"type":"function","function":{"name":"t","description":"d",
        "parameters":{"type":"object","x":1.0}}},{"function":{"name":"u"}}]}"#;
    let Ok(Answer::Manifest { items, revision: 0 }) = answer(manifest) else {
        panic!("no manifest");
    };
    assert_eq!(&*items[0].name, "t");
    assert!(!items[0].repeatable);
    assert_eq!(
        items[0].definition,
        r#"{"name":"t","description":"d","inputSchema":{"type":"object","x":1.0}}"#.as_bytes()
    );
    assert_eq!(
        items[1].definition,
        r#"{"name":"u","inputSchema":{"type":"object"}}"#.as_bytes()
    );
}

#[test]
fn words_of_a_newer_peer_are_read_as_unknown_and_never_as_safe_to_repeat() {
    let body = r#"{"error":"e","failure":{"class":"Cosmic","execution":"maybe","retry":"soon",
        "origin":"tool","code":"new","more":[1]}}"#;
    let Ok(Answer::Failed(failure)) = answer(body) else {
        panic!("no failure");
    };
    assert_eq!(failure.class, Class::ProtocolError);
    assert_eq!(failure.execution, Execution::Unknown);
    assert_eq!(failure.retry, Retry::Never);
    assert_eq!(failure.origin, Origin::Broker);
    assert_eq!(&*failure.code, "new");
}

#[test]
fn a_body_that_says_nothing_is_no_answer_and_no_empty_manifest() {
    for (body, why) in [
        ("{}", FrameError::Member("result")),
        ("[]", FrameError::Member("body")),
        (r#"{"manifest":{}}"#, FrameError::Member("manifest")),
        (r#"{"manifest":[1]}"#, FrameError::Member("manifest")),
        (
            r#"{"manifest":[{"type":"function"}]}"#,
            FrameError::Member("name"),
        ),
        (
            r#"{"manifest":[{"name":"a"}]}"#,
            FrameError::Member("definition"),
        ),
        (
            r#"{"result":{"result":"x"}}"#,
            FrameError::Member("success"),
        ),
        (r#"{"result":"x"}"#, FrameError::Member("result")),
        (r#"{"output":[]}"#, FrameError::Member("output")),
        (
            r#"{"output":{},"output":{"isError":true}}"#,
            FrameError::Member("output"),
        ),
        (r#"{"error":7}"#, FrameError::Member("error")),
    ] {
        assert_eq!(answer(body), Err(why), "{body}");
    }
}

#[test]
fn sec_60_broker_bodies_have_one_spelling() {
    let read = |text: &'static str| Ask::read(&Bytes::from_static(text.as_bytes()));
    for text in [
        r#"{"op":"call","tool":"a","Tool":"b"}"#,
        r#"{"op":"call","tool":"a","\u0041rguments":{}}"#,
        r#"{"OP":"manifest"}"#,
        r#"{"op":"call","tool":"a","params":{"name":"a","Name":"b"}}"#,
        r#"{"op":"call","tool":"a","params":{"name":"a","argument\u017f":{}}}"#,
        r#"{"op":"mcp","server":"s","method":"prompts/get","params":{"Name":"b"}}"#,
        r#"{"op":"mcp","server":"s","method":"ping","mcp":{"Session":"x"}}"#,
    ] {
        assert!(read(text).is_err(), "{text}");
    }
    assert!(read(r#"{"op":"call","tool":"a","arguments":{"A":1,"a":2},"x":1,"X":2}"#).is_ok());
    let frame = br#"{"kind":"deliver","Kind":"hello","id":"m"}"#;
    assert!(Frame::read(&Bytes::from_static(frame)).is_err());
}

#[test]
fn text_arguments_read_back_with_their_context() {
    let call = |context: Context| Ask::Call {
        tool: "t".into(),
        server: None,
        arguments: Arguments::Text(Box::new(TextArguments {
            json: Bytes::from_static(br#"{"a":1.0}"#),
            context,
        })),
    };
    let plain = call(Context::default()).to_bytes();
    assert_eq!(
        plain,
        r#"{"op":"call","tool":"t","arguments":"{\"a\":1.0}"}"#
    );
    let Ok(Ask::Call { arguments, .. }) = Ask::read(&plain) else {
        panic!("no call");
    };
    assert_eq!(
        arguments,
        Arguments::Object(Bytes::from_static(br#"{"a":1.0}"#))
    );
    let read = Ask::read(&call(spoken()).to_bytes()).unwrap();
    assert_eq!(read.context(), Some(&spoken()));
    let Ask::Call {
        arguments: Arguments::Told(told),
        ..
    } = read
    else {
        panic!("nothing is said of who asks");
    };
    assert_eq!(told.params, r#"{"name":"t","arguments":{"a":1.0}}"#);
}
