//! How a connection begins, and what ends it.

use bowline_host::executor::{Attend as _, Credential, Reference, Servant, as_exec_server};
use bowline_host::ports::SystemClock;
use bowline_link::websocket::{Form, Side, SocketLimits, join};
use std::sync::Arc;

use super::*;

#[tokio::test]
async fn requests_before_the_end_of_the_handshake_are_refused() {
    let (upstream, served) = served().await;
    let mut client = served.dial(None).await.unwrap();
    let refused = client.refused(&upstream.url, json!({})).await;
    assert_eq!(refused["code"], -32600);
    let answer = client.initialize(Value::Null).await;
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    let refused = client.refused(&upstream.url, json!({})).await;
    assert_eq!(refused["code"], -32600);
    let again = client.initialize(Value::Null).await;
    assert_eq!(again["error"]["code"], -32600);
    client.write(&json!({"method": "initialized"})).await;
    client.ask(2, &upstream.url, json!({})).await;
    upstream.answers(plain("ok")).await;
    assert_eq!(client.read().await["result"]["status"], 200);
}

#[tokio::test]
async fn what_cannot_be_read_is_told_and_the_connection_goes_on() {
    let (_upstream, served) = served().await;
    let mut client = served.client().await;
    let many = "0,".repeat(256 * 1024);
    let many = format!(r#"{{"id":1,"method":"x","params":[{many}0]}}"#);
    for text in ["{bad", "[1]", "{}", r#"{"id":null,"method":"x"}"#, &*many] {
        client.say(text).await;
        let answer = client.read().await;
        assert_eq!(answer["id"], -1);
        assert_eq!(answer["error"]["code"], -32600);
    }
    let status = json!({"id": "a", "method": "environment/status", "params": {}});
    client.write(&status).await;
    let want = json!({"id": "a", "result": {"status": "ready"}});
    assert_eq!(client.read().await, want);
}

#[tokio::test]
async fn commands_and_files_are_not_offered() {
    let (_upstream, served) = served().await;
    let mut client = served.client().await;
    for method in ["process/start", "process/write", "fs/readFile", "no/such"] {
        let params = json!({"processId": "p", "argv": ["true"], "cwd": "file:///"});
        client
            .write(&json!({"id": 3, "method": method, "params": params}))
            .await;
        let answer = client.read().await;
        assert_eq!(answer["error"]["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn what_nobody_asked_for_ends_the_connection() {
    let (_upstream, served) = served().await;
    for message in [
        json!({"method": "no/such", "params": {}}),
        json!({"method": "http/request", "params": {}}),
        json!({"id": 7, "result": {}}),
        json!({"id": 7, "error": {"code": 1, "message": "x"}}),
    ] {
        let mut client = served.client().await;
        client.write(&message).await;
        let ended = client.ended().await;
        assert!(
            matches!(ended, Ended::Closed { code: 4004, .. }),
            "{message}"
        );
    }
    let mut client = served.dial(None).await.unwrap();
    client.write(&json!({"method": "initialized"})).await;
    let ended = client.ended().await;
    assert!(matches!(ended, Ended::Closed { code: 4004, .. }));
}

#[tokio::test]
async fn a_session_is_resumed_by_one_connection_at_a_time() {
    let (_upstream, served) = served().await;
    let mut first = served.dial(None).await.unwrap();
    let session = first.shake().await;
    let mut second = served.dial(None).await.unwrap();
    let refused = second.initialize(json!(session)).await;
    assert_eq!(refused["error"]["code"], -32010);
    let refused = second.initialize(json!("unknown")).await;
    assert_eq!(refused["error"]["code"], -32600);
    drop(first);
    // The end of a connection is noticed a little later.
    let resumed = soon(async {
        loop {
            let answer = second.initialize(json!(session)).await;
            if answer["error"]["code"] != -32010 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(resumed.await["result"]["sessionId"], json!(session));
}

#[tokio::test]
async fn messages_that_are_bytes_are_read_as_text() {
    let (_upstream, served) = served().await;
    let limits = SocketLimits {
        form: Form::Binary,
        ..exec_server_limits()
    };
    let tasks = Tasks::default();
    let dialling = dial(&served.endpoint, None, until(), limits, &tasks);
    let (outgoing, incoming) = Box::pin(dialling).await.unwrap();
    let mut client = Client { outgoing, incoming };
    assert!(!client.shake().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_stalls_is_ended_in_time() {
    let offer = as_exec_server(Offer::new("office"));
    let limits = offer.limits.socket;
    let tasks = Tasks::default();
    let clock = Arc::new(SystemClock::start());
    let servant = Servant::new(offer, tasks.clone(), clock);
    let reference = Reference::new(&servant);
    let (near, far) = tokio::io::duplex(4_096);
    let io = join(near, Side::Server, Bytes::new(), limits, &tasks);
    let (outgoing, incoming) = join(far, Side::Client, Bytes::new(), limits, &tasks);
    let mut client = Client { outgoing, incoming };
    let attending = reference.attend(io);
    let stalling = async {
        client.initialize(Value::Null).await;
        client.ended().await
    };
    let ((), ended) = tokio::join!(attending, stalling);
    assert!(
        matches!(ended, Ended::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}

/// Says something over plain HTTP; returns the first line of the answer.
async fn over_http(served: &Served, request: &str) -> String {
    let authority = served.endpoint.uri().authority().unwrap().as_str();
    let mut stream = TcpStream::connect(authority).await.unwrap();
    write(&mut stream, request).await;
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer.lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn browsers_are_refused_and_readiness_is_told() {
    let (_upstream, served) = served().await;
    let ready = over_http(&served, "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(ready, "HTTP/1.1 200 OK");
    for origin in ["http://evil.example", ""] {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\nconnection: upgrade\r\nupgrade: \
             websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
             dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let refused = over_http(&served, &request).await;
        assert_eq!(refused, "HTTP/1.1 403 Forbidden");
    }
}

#[tokio::test]
async fn whoever_has_no_token_is_not_let_in() {
    let door = Door::Token(Credential::fixed("s3cret"));
    let served = Served::behind(door, Offer::new("office")).await;
    for token in [None, Some("other")] {
        let refused = served.dial(token).await.err();
        assert_eq!(refused, Some(DialError::Refused { status: 401 }));
    }
    let mut client = served.dial(Some("s3cret")).await.unwrap();
    assert!(!client.shake().await.is_empty());
}
