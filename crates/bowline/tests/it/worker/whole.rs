//! A worker's server is a whole server on its hub: everything that it offers and asks travels.

use serde_json::{Value, json};

use crate::harness::worker::Worker;
use crate::harness::{Gateway, Http, Session, eventually, fixture};
use crate::streams::next_event;

const SERVER: &str = "build-a";

/// Where it is met by its own names.
const PATH: &str = "/servers/build-a/mcp";

const WATCHED: &str = "test://watched-resource";

/// What a role has that may use all of it.
const EVERYTHING: &str = "allow = [\"build-a.*\", \"prompt:build-a.*\", \"resource:build-a.*\"]\n";

/// A hub with a server of a worker, and the worker.
fn joined(config: &str) -> (Gateway, Worker) {
    let hub = Gateway::up(&format!(
        "[roles.all]\n{EVERYTHING}[roles.few]\n{EVERYTHING}\
         [principals.w1]\noffers = [\"build-*\"]\n"
    ));
    let token = hub.token_for("w1", "all");
    let worker = Worker::join(&hub, &token, config, &["--offer", "build-*"]);
    worker.gateway.wait_for(SERVER, "ready");
    eventually("the server is in the hub", || {
        let servers = hub.api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        servers.iter().any(|status| status["name"] == SERVER)
    });
    hub.wait_for(SERVER, "ready");
    (hub, worker)
}

fn plain() -> (Gateway, Worker) {
    joined(&fixture(SERVER, &[]))
}

/// A session that can be asked for everything.
fn able(gateway: &Gateway) -> Session {
    gateway.able(
        &json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}},
        "roots": {"listChanged": true}}),
    )
}

/// Reads events until one is like this.
fn hear(stream: &mut Http, is_it: impl Fn(&Value) -> bool) -> Value {
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

/// Begins a call that asks its caller, and returns the question.
fn asked(caller: &mut Session, id: u64, tool: &str, arguments: &Value) -> Value {
    caller.send_call(id, tool, arguments);
    caller.http.read_head();
    hear(&mut caller.http, |message| {
        message["method"].is_string() && message["id"] != Value::Null
    })
}

#[test]
fn what_a_server_says_lists_and_answers_is_the_same_by_way_of_the_hub() {
    let (hub, worker) = plain();
    let (mut here, mut there) = (hub.session(PATH), worker.gateway.session(PATH));
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
    // By the names of all servers together, too.
    let mut all = hub.session("/mcp");
    let prompts = all.request("prompts/list", &json!({}));
    assert!(
        prompts.to_string().contains("build-a__test_simple_prompt"),
        "{prompts}"
    );
    let read = all.request("resources/read", &json!({"uri": "test://static-text"}));
    assert!(read["result"]["contents"].is_array(), "{read}");
}

#[test]
fn a_server_of_a_worker_asks_the_caller_at_the_hub() {
    let (hub, _worker) = plain();
    let mut session = able(&hub);
    let mut caller = session.twin();
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
        let question = asked(&mut caller, id, tool, &arguments);
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
        assert_eq!(session.post(&answer).status, 202);
        let result = hear(&mut caller.http, |message| message["id"] == id);
        assert!(
            result["result"].to_string().contains(want),
            "{tool}: {result}"
        );
        caller = session.twin();
    }
    // One that cannot be asked is not.
    let mut deaf = hub.session("/mcp");
    let refused = deaf.call("build-a__test_elicitation", &json!({"message": "who?"}));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

#[test]
fn progress_and_log_messages_of_a_call_come_before_its_answer_and_as_many_as_are_wanted() {
    let (hub, _worker) = plain();
    let mut session = hub.session("/mcp");
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
fn changes_of_lists_and_of_resources_are_told_at_the_hub() {
    let (hub, worker) = plain();
    let mut session = hub.session(PATH);
    let subscribed = session.request("resources/subscribe", &json!({"uri": WATCHED}));
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let mut stream = session.listen();
    let touch = |session: &mut Session| {
        let touched = session.call("touch", &json!({"uri": WATCHED}));
        touched["result"]["structuredContent"]["notified"].clone()
    };
    let mut there = worker.gateway.session(PATH);
    assert_eq!(touch(&mut there), true, "the server took the subscription");
    let updated = hear(&mut stream, |message| {
        message["method"] == "notifications/resources/updated"
    });
    assert_eq!(updated["params"]["uri"], WATCHED);
    there.call("test_trigger_prompt_change", &json!({}));
    hear(&mut stream, |message| {
        message["method"] == "notifications/prompts/list_changed"
    });
    let prompts = session.request("prompts/list", &json!({}));
    assert!(
        prompts.to_string().contains("test_dynamic_prompt"),
        "{prompts}"
    );
    let ended = session.request("resources/unsubscribe", &json!({"uri": WATCHED}));
    assert_eq!(ended["result"], json!({}), "{ended}");
    eventually("the server is told that nobody wants to know", || {
        touch(&mut there) == false
    });
}

#[test]
fn a_task_is_made_followed_and_listed_through_a_worker() {
    let (hub, _worker) = plain();
    let mut session = hub.session("/mcp");
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
    // It is nobody else's.
    let other = hub.token_for("bob", "all");
    let mut other = hub.session_as(&other, "/mcp");
    let unknown = other.request("tasks/get", &json!({"taskId": id}));
    assert!(unknown["error"].is_object(), "{unknown}");
    let none = other.request("tasks/list", &json!({}));
    assert_eq!(none["result"]["tasks"], json!([]), "{none}");
}

#[test]
fn the_worker_decides_by_role_about_every_kind() {
    let roles = format!("[roles.all]\n{EVERYTHING}[roles.few]\nallow = [\"build-a.echo\"]\n");
    let (hub, _worker) = joined(&(fixture(SERVER, &[]) + &roles));
    let mut all = hub.session_as(&hub.token_for("ann", "all"), PATH);
    let mut few = hub.session_as(&hub.token_for("bob", "few"), PATH);
    assert_eq!(few.text("echo", &json!({"message": "hi"})), "hi");
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

#[test]
fn a_worker_that_dies_while_its_server_asks_ends_the_call_and_takes_the_question_back() {
    let (hub, mut worker) = plain();
    let session = able(&hub);
    let mut caller = session.twin();
    let asks = json!({"key": "k"});
    let question = asked(&mut caller, 7, "build-a__effect_asked", &asks);
    assert_eq!(question["method"], "elicitation/create");
    worker.gateway.kill();
    worker.restart();
    let end = hear(&mut caller.http, |message| message["id"] == 7);
    assert!(end["error"].is_object(), "{end}");
    assert_eq!(
        end["error"]["data"]["execution"], "unknown",
        "nobody knows whether it ran: {end}"
    );
}

#[test]
fn sessions_of_a_hub_are_kept_apart_at_a_worker_and_leave_nothing_behind() {
    let config = format!("{}isolation = \"session\"\n", fixture(SERVER, &[]));
    let (hub, worker) = joined(&config);
    let (mut a, mut b) = (able(&hub), able(&hub));
    for session in [&mut a, &mut b] {
        assert_eq!(
            session.text("build-a__echo", &json!({"message": "hi"})),
            "hi"
        );
    }
    assert_eq!(worker.gateway.status(SERVER)["own_links"], 2);
    a.delete();
    eventually("its link is closed", || {
        worker.gateway.status(SERVER)["own_links"] == 1
    });
    drop(b);
}
