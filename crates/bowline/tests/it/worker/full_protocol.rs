//! A worker's server is complete on its hub: offers, requests and notifications pass.

use bowline_testkit::gateway::{Gateway, HttpConnection, Session, Worker, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::streams::next_event;

const SERVER: &str = "build-a";

/// The endpoint with unprefixed names.
const PATH: &str = "/servers/build-a/mcp";

const WATCHED: &str = "test://watched-resource";

/// The rules of a role with full access.
const EVERYTHING: &str = "allow = [\"build-a.*\", \"prompt:build-a.*\", \"resource:build-a.*\"]\n";

/// A hub with a worker's server, and the worker.
fn start_joined(config: &str) -> (Gateway, Worker) {
    let hub = Gateway::start(&format!(
        "[roles.all]\n{EVERYTHING}[roles.few]\n{EVERYTHING}\
         [principals.w1]\noffers = [\"build-*\"]\n"
    ));
    let token = hub.create_role_token("w1", "all");
    let worker = Worker::join(&hub, &token, config, &["--offer", "build-*"]);
    worker.gateway.wait_for_state(SERVER, "ready");
    wait_until("the server is in the hub", || {
        let servers = hub.get_api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        servers.iter().any(|status| status["name"] == SERVER)
    });
    hub.wait_for_state(SERVER, "ready");
    (hub, worker)
}

fn start_plain() -> (Gateway, Worker) {
    start_joined(&fixture_config(SERVER, &[]))
}

/// A session with all client capabilities.
fn open_full_session(gateway: &Gateway) -> Session {
    gateway.open_session_with_capabilities(
        &json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}},
        "roots": {"listChanged": true}}),
    )
}

/// Reads events until a match.
fn read_until(stream: &mut HttpConnection, is_it: impl Fn(&Value) -> bool) -> Value {
    loop {
        let event = next_event(stream).expect("the stream ended");
        let said = event.data.as_deref().filter(|data| !data.is_empty());
        if let Some(said) = said {
            let message: Value = serde_json::from_str(said).unwrap();
            if is_it(&message) {
                return message;
            }
        }
    }
}

/// Starts an eliciting call, and returns the elicitation.
fn start_asking_call(caller: &mut Session, id: u64, tool: &str, arguments: &Value) -> Value {
    caller.send_call(id, tool, arguments);
    caller.http.read_head();
    read_until(&mut caller.http, |message| {
        message["method"].is_string() && message["id"] != Value::Null
    })
}

#[test]
fn worker_server_behaves_alike_through_hub() {
    let (hub, worker) = start_plain();
    let (mut here, mut there) = (hub.open_session(PATH), worker.gateway.open_session(PATH));
    for list in [
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
    ] {
        let (ours, theirs) = (
            here.request(list, &json!({})),
            there.request(list, &json!({})),
        );
        assert_eq!(ours["result"], theirs["result"], "{list}");
        assert!(ours["result"].to_string().len() > 50, "{list}: {ours}");
    }
    for (method, params) in [
        ("prompts/get", json!({"name": "test_simple_prompt"})),
        (
            "prompts/get",
            json!({"name": "test_prompt_with_arguments", "arguments": {"arg1": "a", "arg2": "b"}}),
        ),
        ("prompts/get", json!({"name": "nothing"})),
        ("resources/read", json!({"uri": "test://static-text"})),
        ("resources/read", json!({"uri": "test://static-binary"})),
        ("resources/read", json!({"uri": "test://template/7/data"})),
        ("resources/read", json!({"uri": "test://nothing"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "test_prompt_with_arguments"},
                "argument": {"name": "arg1", "value": "t"}}),
        ),
    ] {
        let (mut ours, mut theirs) = (
            here.request(method, &params),
            there.request(method, &params),
        );
        for answer in [&mut ours, &mut theirs] {
            answer["id"] = Value::Null;
        }
        assert_eq!(ours, theirs, "{method} {params}");
    }
    // By the prefixed names too.
    let mut all = hub.open_session("/mcp");
    let prompts = all.request("prompts/list", &json!({}));
    assert!(
        prompts.to_string().contains("build-a__test_simple_prompt"),
        "{prompts}"
    );
    let read = all.request("resources/read", &json!({"uri": "test://static-text"}));
    assert!(read["result"]["contents"].is_array(), "{read}");
}

#[test]
fn worker_server_request_reaches_hub_caller() {
    let (hub, _worker) = start_plain();
    let mut session = open_full_session(&hub);
    let mut caller = session.clone_on_new_connection();
    for (id, tool, arguments, answer, want) in [
        (
            7,
            "build-a__test_elicitation",
            json!({"message": "who?"}),
            json!({"action": "accept", "content": {"username": "ann", "email": "e"}}),
            "ann",
        ),
        (
            8,
            "build-a__test_sampling",
            json!({"prompt": "say"}),
            json!({"role": "assistant", "model": "m",
                "content": {"type": "text", "text": "said by ann"}}),
            "said by ann",
        ),
        (
            9,
            "build-a__test_roots",
            json!({}),
            json!({"roots": [{"uri": "file:///ann"}]}),
            "file:///ann",
        ),
    ] {
        let question = start_asking_call(&mut caller, id, tool, &arguments);
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
        assert_eq!(session.post(&answer).status, 202);
        let result = read_until(&mut caller.http, |message| message["id"] == id);
        assert!(
            result["result"].to_string().contains(want),
            "{tool}: {result}"
        );
        caller = session.clone_on_new_connection();
    }
    // A client without the capability gets no request.
    let mut deaf = hub.open_session("/mcp");
    let refused = deaf.call("build-a__test_elicitation", &json!({"message": "who?"}));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

/// Progress and log messages of a call arrive before the response, at the client's log level.
#[test]
fn worker_call_notifications_precede_response() {
    let (hub, _worker) = start_plain();
    let mut session = hub.open_session("/mcp");
    let call = |name: &str| {
        json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params":
            {"name": name, "arguments": {}, "_meta": {"progressToken": "p"}}})
    };
    let events = session
        .post(&call("build-a__test_tool_with_progress"))
        .events();
    let told = |event: &&Value| event["params"]["progressToken"] == "p";
    assert_eq!(events.iter().filter(told).count(), 3, "{events:?}");
    assert_eq!(events.last().unwrap()["id"], 5);

    let messages = |session: &mut Session| {
        let said = session.post(&call("build-a__test_tool_with_logging"));
        said.text().matches("notifications/message").count()
    };
    assert_eq!(messages(&mut session), 3);
    let levelled = session.request("logging/setLevel", &json!({"level": "error"}));
    assert_eq!(levelled["result"], json!({}), "{levelled}");
    assert_eq!(messages(&mut session), 0);
}

#[test]
fn worker_list_and_resource_changes_reach_hub() {
    let (hub, worker) = start_plain();
    let mut session = hub.open_session(PATH);
    let subscribed = session.request("resources/subscribe", &json!({"uri": WATCHED}));
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let mut stream = session.open_stream();
    let touch = |session: &mut Session| {
        let touched = session.call("touch", &json!({"uri": WATCHED}));
        touched["result"]["structuredContent"]["notified"].clone()
    };
    let mut there = worker.gateway.open_session(PATH);
    assert_eq!(touch(&mut there), true, "the server took the subscription");
    let updated = read_until(&mut stream, |message| {
        message["method"] == "notifications/resources/updated"
    });
    assert_eq!(updated["params"]["uri"], WATCHED);
    there.call("test_trigger_prompt_change", &json!({}));
    read_until(&mut stream, |message| {
        message["method"] == "notifications/prompts/list_changed"
    });
    let prompts = session.request("prompts/list", &json!({}));
    assert!(
        prompts.to_string().contains("test_dynamic_prompt"),
        "{prompts}"
    );
    let ended = session.request("resources/unsubscribe", &json!({"uri": WATCHED}));
    assert_eq!(ended["result"], json!({}), "{ended}");
    wait_until("the server is told that nobody wants to know", || {
        touch(&mut there) == false
    });
}

#[test]
fn task_works_through_worker() {
    let (hub, _worker) = start_plain();
    let mut session = hub.open_session("/mcp");
    let params = json!({"name": "build-a__test_task", "arguments": {"ms": 1},
        "task": {"ttl": 600_000}});
    let made = session.request("tools/call", &params);
    let id = made["result"]["task"]["taskId"].clone();
    assert!(id.is_string(), "{made}");
    let result = session.request("tasks/result", &json!({"taskId": id}));
    assert!(result["result"]["content"].is_array(), "{result}");
    let task = session.request("tasks/get", &json!({"taskId": id}));
    assert_eq!(task["result"]["status"], "completed", "{task}");
    let list = session.request("tasks/list", &json!({}));
    assert_eq!(list["result"]["tasks"][0]["taskId"], id, "{list}");
    // The task belongs to the caller only.
    let other = hub.create_role_token("bob", "all");
    let mut other = hub.open_session_as(&other, "/mcp");
    let unknown = other.request("tasks/get", &json!({"taskId": id}));
    assert!(unknown["error"].is_object(), "{unknown}");
    let none = other.request("tasks/list", &json!({}));
    assert_eq!(none["result"]["tasks"], json!([]), "{none}");
}

#[test]
fn worker_authorizes_every_kind_by_role() {
    let roles = format!("[roles.all]\n{EVERYTHING}[roles.few]\nallow = [\"build-a.echo\"]\n");
    let (hub, _worker) = start_joined(&(fixture_config(SERVER, &[]) + &roles));
    let mut all = hub.open_session_as(&hub.create_role_token("ann", "all"), PATH);
    let mut few = hub.open_session_as(&hub.create_role_token("bob", "few"), PATH);
    assert_eq!(few.call_text("echo", &json!({"message": "hi"})), "hi");
    for (method, params) in [
        ("prompts/get", json!({"name": "test_simple_prompt"})),
        ("resources/read", json!({"uri": "test://static-text"})),
        ("resources/subscribe", json!({"uri": WATCHED})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "test_prompt_with_arguments"},
                "argument": {"name": "arg1", "value": "t"}}),
        ),
    ] {
        let allowed = all.request(method, &params);
        assert!(allowed["result"].is_object(), "{method}: {allowed}");
        let refused = few.request(method, &params);
        assert!(refused["error"].is_object(), "{method}: {refused}");
    }
}

/// The death of a worker during a server request ends the call and cancels the request.
#[test]
fn dead_worker_ends_call_and_cancels_request() {
    let (hub, mut worker) = start_plain();
    let session = open_full_session(&hub);
    let mut caller = session.clone_on_new_connection();
    let asks = json!({"key": "k"});
    let question = start_asking_call(&mut caller, 7, "build-a__effect_asked", &asks);
    assert_eq!(question["method"], "elicitation/create");
    worker.gateway.kill();
    worker.restart();
    let end = read_until(&mut caller.http, |message| message["id"] == 7);
    assert!(end["error"].is_object(), "{end}");
    assert_eq!(
        end["error"]["data"]["execution"], "unknown",
        "nobody knows whether it ran: {end}"
    );
}

/// Sessions of a hub are kept apart at a worker, and leave nothing behind.
#[test]
fn hub_sessions_stay_separate_at_worker() {
    let config = format!("{}isolation = \"session\"\n", fixture_config(SERVER, &[]));
    let (hub, worker) = start_joined(&config);
    let (mut a, mut b) = (open_full_session(&hub), open_full_session(&hub));
    for session in [&mut a, &mut b] {
        assert_eq!(
            session.call_text("build-a__echo", &json!({"message": "hi"})),
            "hi"
        );
    }
    assert_eq!(worker.gateway.server_status(SERVER)["own_links"], 2);
    a.end_session();
    wait_until("its link is closed", || {
        worker.gateway.server_status(SERVER)["own_links"] == 1
    });
    drop(b);
}
