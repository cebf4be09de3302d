//! Tools of a hub, run by name.

use std::collections::HashSet;
use std::time::Duration;

use bowline_broker::frames::{
    BrokerArguments as Sent, BrokerFrame, BrokerRequest, BrokerResponse, ManifestItem,
};
use bowline_core::call::ReplyOrigin;
use bowline_core::era::Era;
use bowline_core::error::{
    CallError, ExecutionStatus, FailureClass, FailureOrigin as Where, FailureReport, RetryAdvice,
};
use bowline_testkit::scripted_broker::{
    ScriptedBroker, ScriptedBrokerPeer, item, output, quick_options, tools, tools_with,
};
use bowline_tools::{ExecuteContext, ExecuteError, ToolArguments, ToolExecutor as _};
use bytes::Bytes;

fn arguments(text: &'static str) -> ToolArguments {
    ToolArguments::parse(text).unwrap()
}

/// Parses a stored call.
async fn stored_call(
    peer: &mut ScriptedBrokerPeer,
) -> (bowline_broker::frames::MailboxMessage, BrokerRequest) {
    let letter = peer.delivery().await;
    let ask = BrokerRequest::parse(&letter.body).unwrap();
    (letter, ask)
}

#[tokio::test]
async fn hub_tools_are_listed_and_called() {
    let broker = ScriptedBroker::start().await;
    let definition =
        r#"{"name":"s__echo","description":"Echoes.","inputSchema":{"type":"object"},"x":1.0}"#;
    let echo = ManifestItem {
        definition: definition.into(),
        ..item("s__echo", false)
    };
    let (tools, mut peer) = tools(&broker, &[echo]).await;
    let listed = tools.list_tools();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&**listed[0].name(), &*listed[0].description()),
        ("s__echo", "Echoes.")
    );
    assert_eq!(listed[0].definition(), definition.as_bytes());
    assert!(tools.has_tool("s__echo") && !tools.has_tool("echo"));

    let context = ExecuteContext::default();
    // Numbers, escapes and order stay as written by the caller.
    let text = r#"{ "n":1.0, "big":123456789012345678901234567890,"a":"\u00e9", "b":[] }"#;
    let serve = async {
        let (letter, ask) = stored_call(&mut peer).await;
        let want = BrokerRequest::Call {
            tool: "s__echo".into(),
            server: None,
            arguments: Sent::Object(text.into()),
        };
        assert_eq!(ask, want);
        peer.serve(&letter, &output("done")).await;
    };
    let (done, ()) = tokio::join!(tools.execute("s__echo", arguments(text), &context), serve);
    let done = done.unwrap();
    assert_eq!((&*done.text(), done.origin()), ("done", ReplyOrigin::Live));

    let unknown = tools.execute("nobody", arguments("{}"), &context).await;
    assert_eq!(unknown, Err(ExecuteError::unknown_tool("nobody")));
    let bad = tools
        .execute("s__echo", serde_json::json!([1]).into(), &context)
        .await;
    assert!(
        matches!(bad, Err(ExecuteError::Arguments { .. })),
        "{bad:?}"
    );
    // Local refusals send nothing: the next frame belongs to the next call.
    let serve = async {
        let (letter, _) = stored_call(&mut peer).await;
        peer.serve(&letter, &output("again")).await;
    };
    let (done, ()) = tokio::join!(tools.execute("s__echo", arguments("{}"), &context), serve);
    assert_eq!(done.unwrap().text(), "again");
}

/// Calls a tool eight times concurrently with distinct numbers; `serve` responds.
async fn assert_eight_at_once(repeatable: bool) {
    let broker = ScriptedBroker::start().await;
    let (tools, mut peer) = tools(&broker, &[item("t", repeatable)]).await;
    let context = ExecuteContext::default();
    let run = |nth: u32| {
        let arguments = serde_json::json!({ "nth": nth }).into();
        tools.execute("t", arguments, &context)
    };
    let calls = async {
        tokio::join!(
            run(0),
            run(1),
            run(2),
            run(3),
            run(4),
            run(5),
            run(6),
            run(7)
        )
    };
    let serve = async {
        // No response before all calls arrived: the calls overlap.
        let mut asked = Vec::new();
        for _ in 0..8 {
            asked.push(peer.next().await);
        }
        let mut seen = HashSet::new();
        for frame in asked.iter().rev() {
            let body = match frame {
                BrokerFrame::Request(request) => &request.body,
                BrokerFrame::Deliver { message, .. } => &message.body,
                other => panic!("{other:?}"),
            };
            let Ok(BrokerRequest::Call {
                arguments: Sent::Object(arguments),
                ..
            }) = BrokerRequest::parse(body)
            else {
                panic!("no call")
            };
            let arguments: serde_json::Value = serde_json::from_slice(&arguments).unwrap();
            let nth = arguments["nth"].to_string();
            match frame {
                BrokerFrame::Request(request) => peer.respond(&request.id, &output(&nth)).await,
                BrokerFrame::Deliver { message, .. } => peer.serve(message, &output(&nth)).await,
                _ => {}
            }
            seen.insert(nth);
        }
        assert_eq!(seen.len(), 8);
    };
    let (all, ()) = tokio::join!(calls, serve);
    let all = [all.0, all.1, all.2, all.3, all.4, all.5, all.6, all.7];
    let texts = all.map(|output| output.unwrap().text().into_owned());
    assert_eq!(texts, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(tools.client().pending_calls(), 0);
}

#[tokio::test]
async fn concurrent_live_calls_get_own_responses() {
    assert_eight_at_once(true).await;
}

#[tokio::test]
async fn concurrent_stored_calls_get_own_responses() {
    assert_eight_at_once(false).await;
}

#[tokio::test]
async fn disconnect_after_deliveries_loses_no_call() {
    let broker = ScriptedBroker::start().await;
    let items = [item("t", false)];
    let (tools, mut peer) = tools(&broker, &items).await;
    let context = ExecuteContext::default();
    let run = || tools.execute("t", ToolArguments::default(), &context);
    let serve = async {
        let (one, _) = stored_call(&mut peer).await;
        peer.serve(&one, &output("one")).await;
        let (two, _) = stored_call(&mut peer).await;
        peer.outgoing.close(1001, "going");
        let mut peer = broker.accept_client(&items).await;
        let (again, _) = stored_call(&mut peer).await;
        assert_eq!(again.id, two.id);
        peer.serve(&again, &output("two")).await;
        let (three, _) = stored_call(&mut peer).await;
        peer.serve(&three, &output("three")).await;
    };
    let calls = async {
        for text in ["one", "two", "three"] {
            assert_eq!(run().await.unwrap().text(), text);
        }
    };
    tokio::join!(calls, serve);
    assert_eq!(tools.client().generation(), Some(2));
}

#[tokio::test]
async fn lost_repeatable_call_retries_once() {
    let broker = ScriptedBroker::start().await;
    let items = [item("read", true)];
    let (tools, mut peer) = tools(&broker, &items).await;
    let context = ExecuteContext::default();
    let serve = async {
        for _ in 0..2 {
            peer.request().await;
            peer.outgoing.close(1001, "going");
            peer = broker.accept_client(&items).await;
        }
        peer
    };
    let run = tools.execute("read", ToolArguments::default(), &context);
    let (lost, mut peer) = tokio::join!(run, serve);
    let error = lost.unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    let ExecuteError::Call(CallError::RemoteFailure { server, failure }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        (&*server, failure.class),
        ("s", FailureClass::ConnectionLost)
    );
    // No third attempt: the next frame belongs to the next call.
    let serve = async {
        let (id, ask) = peer.request().await;
        assert!(
            matches!(ask, BrokerRequest::Call { arguments: Sent::Object(text), .. } if text == *"{\"n\":2}")
        );
        peer.respond(&id, &output("two")).await;
        peer.next_within(Duration::ZERO).await
    };
    let (done, more) = tokio::join!(
        tools.execute("read", arguments("{\"n\":2}"), &context),
        serve
    );
    assert_eq!((done.unwrap().text().as_ref(), more), ("two", None));
}

#[tokio::test]
async fn timeout_is_reported_and_not_retried() {
    let broker = ScriptedBroker::start().await;
    let (tools, mut peer) = tools(&broker, &[item("read", true)]).await;
    let context = ExecuteContext {
        timeout: Some(Duration::from_millis(80)),
        ..ExecuteContext::default()
    };
    let serve = async {
        let (id, _) = peer.request().await;
        let cancel = BrokerFrame::Cancel {
            to: None,
            correlation_id: id,
        };
        assert_eq!(peer.next().await, cancel);
    };
    let run = tools.execute("read", ToolArguments::default(), &context);
    let (late, ()) = tokio::join!(run, serve);
    let error = late.unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    let ExecuteError::Call(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.failure_class(), FailureClass::Timeout);
    assert_eq!(tools.client().generation(), Some(1));
}

#[tokio::test]
async fn hub_failure_keeps_class_and_execution() {
    let broker = ScriptedBroker::start().await;
    let (tools, mut peer) = tools_with(&broker, &[item("t", false)], quick_options()).await;
    let context = ExecuteContext::default();
    let failure = FailureReport {
        class: FailureClass::Denied,
        execution: ExecutionStatus::NotStarted,
        retry: RetryAdvice::Never,
        origin: Where::Policy,
        code: "policy_denied".into(),
        reason: "not for you".into(),
    };
    let rpc = Bytes::from_static(br#"{"code":-32602,"message":"no such city","data":[1.0]}"#);
    let tool_error = br#"{"content":[{"type":"image","data":"x"}],"isError":true,"structuredContent":{"n":1.0}}"#;
    let answers = [
        BrokerResponse::Failed(failure.clone()),
        BrokerResponse::RpcError {
            error: rpc.clone(),
            era: Era::Legacy,
        },
        BrokerResponse::Output {
            result: Bytes::from_static(tool_error),
            from_journal: true,
            era: Era::Legacy,
        },
    ];
    let mut told = Vec::new();
    for answer in answers {
        let serve = async {
            let letter = peer.delivery().await;
            peer.serve(&letter, &answer).await;
        };
        let run = tools.execute("t", ToolArguments::default(), &context);
        let (outcome, ()) = tokio::join!(run, serve);
        told.push(outcome);
    }
    let elsewhere = CallError::RemoteFailure {
        server: "s".into(),
        failure: failure.into(),
    };
    assert_eq!(told[0], Err(ExecuteError::Call(elsewhere)));
    let refused = CallError::Refused {
        server: "s".into(),
        error: rpc,
    };
    assert_eq!(told[1], Err(ExecuteError::Call(refused)));
    let output = told[2].as_ref().unwrap();
    assert!(output.is_error());
    assert_eq!(output.raw(), &tool_error[..]);
    assert_eq!(output.origin(), ReplyOrigin::Recorded);
}
