//! Tasks of callers without a session, over servers of both eras.

use serde_json::{Value, json};

use super::{Caller, state_of};
use crate::harness::served::Served;
use crate::harness::worker::Worker;
use crate::harness::{Gateway, fixture};

/// A client that takes tasks for answers.
fn taking(gateway: &Gateway) -> Caller {
    let mut caller = Caller::of(gateway, "/mcp");
    caller.capabilities["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
    caller
}

/// Another one, of another principal.
fn bob(gateway: &Gateway) -> Caller {
    taking(gateway).with_token(&gateway.token_for("bob", "all"))
}

/// Checks a result that names a task, and returns its id.
fn id_of(answer: &Value) -> String {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "task", "{answer}");
    for key in ["status", "createdAt", "lastUpdatedAt"] {
        assert!(result[key].is_string(), "{answer}");
    }
    assert!(result.get("ttlMs").is_some() && result.get("ttl").is_none());
    result["taskId"].as_str().unwrap().to_owned()
}

fn get(caller: &Caller, id: &str) -> Value {
    let answer = caller.request("tasks/get", json!({ "taskId": id }));
    let result = &answer["result"];
    assert_eq!(result["resultType"], "complete", "{answer}");
    assert_eq!(result["taskId"], *id, "{answer}");
    result.clone()
}

/// Asks until the task stands like this; what is over stays as it is.
fn until(caller: &Caller, id: &str, status: &str) -> Value {
    let mut last = Value::Null;
    crate::harness::eventually(&format!("it is {status}"), || {
        last = get(caller, id);
        let is_there = last["status"] == status;
        let mut ends = ["completed", "failed", "cancelled"].iter();
        let is_over = ends.any(|end| last["status"] == **end);
        assert!(is_there || !is_over, "{last}");
        is_there
    });
    last
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"]
        .as_i64()
        .unwrap_or_else(|| panic!("{answer}"))
}

/// What holds over every server.
fn walk(gateway: &Gateway) {
    gateway.wait_for("one", "ready");
    let caller = taking(gateway);
    ends(&caller);
    cancels(&caller);
    strangers(gateway, &caller);
}

fn ends(caller: &Caller) {
    let made = caller.call(
        "one__test_task_required",
        &json!({"ms": 20, "message": "done"}),
    );
    let id = id_of(&made);
    let over = until(caller, &id, "completed");
    assert_eq!(over["result"]["content"][0]["text"], "done", "{over}");
    // A tool that says that it failed has answered; an error of the protocol has not.
    let id = id_of(&caller.call("one__failing_job", &json!({})));
    let over = until(caller, &id, "completed");
    assert_eq!(over["result"]["isError"], true, "{over}");
    let id = id_of(&caller.call("one__protocol_error_job", &json!({})));
    let over = until(caller, &id, "failed");
    assert_eq!(over["error"]["code"], -32603, "{over}");
    assert!(over.get("result").is_none(), "{over}");
}

fn cancels(caller: &Caller) {
    let made = caller.call("one__slow_compute", &json!({"seconds": 600}));
    let id = id_of(&made);
    assert_eq!(get(caller, &id)["status"], "working");
    for _ in 0..2 {
        let answer = caller.request("tasks/cancel", json!({ "taskId": id }));
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        assert!(answer["result"].get("taskId").is_none(), "{answer}");
        until(caller, &id, "cancelled");
    }
    let nothing = json!({ "taskId": id, "inputResponses": {"nobody": {}} });
    let answer = caller.request("tasks/update", nothing);
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

fn strangers(gateway: &Gateway, caller: &Caller) {
    let id = id_of(&caller.call("one__slow_compute", &json!({"seconds": 600})));
    let mut cannot = caller.clone();
    cannot.capabilities = json!({});
    let params = json!({ "taskId": id });
    let refused = cannot.ask(&json!(1), "tasks/get", params.clone());
    assert_eq!(refused.status, 400);
    let error = &refused.json()["error"];
    assert_eq!(error["code"], -32021, "{error}");
    let needed = &error["data"]["requiredCapabilities"]["extensions"];
    assert!(
        needed["io.modelcontextprotocol/tasks"].is_object(),
        "{error}"
    );
    let refused = cannot.call("one__test_task_required", &json!({}));
    assert_eq!(code(&refused), -32021, "{refused}");
    let bob = bob(gateway);
    let forged = json!({ "taskId": format!("{id}A") });
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(code(&bob.request(method, params.clone())), -32602);
        assert_eq!(code(&caller.request(method, forged.clone())), -32602);
    }
    assert_eq!(get(caller, &id)["status"], "working");
    for removed in ["tasks/result", "tasks/list"] {
        let gone = caller.ask(&json!(1), removed, params.clone());
        assert_eq!(gone.status, 404, "{removed}");
    }
}

/// Has a task ask its caller, answers it, and waits for its end.
fn confirms(caller: &Caller, arguments: &Value) {
    let id = id_of(&caller.call("one__confirm_delete", arguments));
    let asked = until(caller, &id, "input_required");
    let question = &asked["inputRequests"]["confirm"];
    assert_eq!(question["method"], "elicitation/create", "{asked}");
    let yes = json!({"action": "accept", "content": {"confirm": true}});
    let update = json!({ "taskId": id, "inputResponses": {"confirm": yes} });
    let answer = caller.request("tasks/update", update);
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    let over = until(caller, &id, "completed");
    let said = over["result"]["content"][0]["text"].as_str().unwrap();
    assert!(said.contains(r#""confirm":true"#), "{over}");
}

/// What another principal may do.
const ROLE: &str = "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";

fn config(era: &str) -> String {
    fixture("one", &["--era", era]) + ROLE
}

#[test]
fn tasks_of_a_legacy_server_are_those_of_the_extension() {
    walk(&Gateway::up(&config("legacy")));
}

#[test]
fn tasks_of_a_modern_server_have_ids_of_their_caller() {
    let gateway = Gateway::up(&config("modern"));
    walk(&gateway);
    let caller = taking(&gateway);
    confirms(&caller, &json!({"filename": "f"}));
    // A question before the task begins is one like any other.
    let asked = caller.call("one__test_tool_with_task", &json!({}));
    let name = json!({"user_name": {"action": "accept", "content": {"name": "x"}}});
    let made = caller.again(
        "one__test_tool_with_task",
        &json!({}),
        &name,
        &state_of(&asked),
    );
    until(&caller, &id_of(&made), "completed");
}

#[test]
fn a_task_is_found_again_after_a_restart() {
    let served = Served::start(&["--era", "modern"]);
    let config = format!("[servers.one]\nurl = {}\n", json!(served.url));
    let mut gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let made = taking(&gateway).call("one__test_task_required", &json!({"ms": 20}));
    let id = id_of(&made);
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    let over = until(&taking(&gateway), &id, "completed");
    assert_eq!(over["result"]["content"][0]["text"], "Task completed");
}

/// Begins a task that goes on for long, and returns its id.
fn begin(caller: &Caller, server: &str) -> String {
    let tool = format!("{server}__slow_compute");
    id_of(&caller.call(&tool, &json!({"seconds": 600})))
}

/// Checks that there is nothing under an id.
fn is_unknown(caller: &Caller, id: &str) {
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({ "taskId": id, "inputResponses": {} });
        let answer = caller.request(method, params);
        assert_eq!(code(&answer), -32602, "{method}: {answer}");
    }
}

#[test]
fn an_id_that_a_server_gave_to_somebody_else_since_is_no_longer_ones_own() {
    for era in ["legacy", "modern"] {
        let counted = ["--era", era, "--fault", "counted-tasks"];
        let mut gateway = Gateway::up(&(fixture("one", &counted) + ROLE));
        gateway.wait_for("one", "ready");
        let (ann, other) = (taking(&gateway), bob(&gateway));
        let stale = begin(&ann, "one");
        gateway.order("one", "restart");
        gateway.wait_for("one", "ready");
        let own = begin(&other, "one");
        is_unknown(&ann, &stale);
        assert_eq!(get(&other, &own)["status"], "working");
        // The gateway's own memory is not needed for that: the process took its tasks along.
        gateway.restart_after_kill();
        gateway.wait_for("one", "ready");
        let (ann, other) = (taking(&gateway), bob(&gateway));
        is_unknown(&other, &own);
        let last = begin(&ann, "one");
        is_unknown(&other, &own);
        is_unknown(&ann, &stale);
        assert_eq!(get(&ann, &last)["status"], "working");
    }
}

#[test]
fn after_a_restart_an_id_means_the_task_that_it_was_given_for() {
    let mut served = Served::start(&["--era", "modern", "--fault", "counted-tasks"]);
    let config = format!("[servers.one]\nurl = {}\n{ROLE}", json!(served.url));
    let mut gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let stale = begin(&taking(&gateway), "one");
    served.kill();
    served.restart();
    let mut own = String::new();
    crate::harness::eventually("it serves again", || {
        let made = bob(&gateway).call("one__slow_compute", &json!({"seconds": 600}));
        let is_made = made["result"].is_object();
        if is_made {
            own = id_of(&made);
        }
        is_made
    });
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    // Nobody is remembered to have it, and it is another one.
    is_unknown(&taking(&gateway), &stale);
    assert_eq!(get(&bob(&gateway), &own)["status"], "working");
}

#[test]
fn tasks_of_one_name_at_two_servers_are_told_apart() {
    let counted = ["--era", "modern", "--fault", "counted-tasks"];
    let config = fixture("one", &counted) + &fixture("two", &counted);
    let gateway = Gateway::up(&config);
    for server in ["one", "two"] {
        gateway.wait_for(server, "ready");
    }
    let caller = taking(&gateway);
    let (first, second) = (begin(&caller, "one"), begin(&caller, "two"));
    for id in [&first, &second] {
        assert_eq!(get(&caller, id)["status"], "working");
    }
    caller.request("tasks/cancel", json!({ "taskId": second }));
    until(&caller, &second, "cancelled");
    assert_eq!(get(&caller, &first)["status"], "working");
    let elsewhere = caller.at("/servers/two/mcp");
    is_unknown(&elsewhere, &first);
}

#[test]
fn what_a_task_of_a_legacy_server_asks_is_told_and_answered_by_who_asks_how_it_stands() {
    let gateway = Gateway::up(&config("legacy"));
    gateway.wait_for("one", "ready");
    for _ in 0..2 {
        confirms(&taking(&gateway), &json!({"filename": "f"}));
    }
}

#[test]
fn a_task_that_works_for_longer_than_a_call_may_ends_as_its_server_says() {
    let config = fixture("one", &["--era", "legacy"]) + "timeout = \"1s\"\n";
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    confirms(&taking(&gateway), &json!({"filename": "f", "ms": 1_500}));
}

#[test]
fn a_result_that_cannot_be_had_now_is_no_failure_of_its_task() {
    let role = "[roles.few]\nallow = [\"one.*\"]\nrate = { calls = 1, per = \"12h\", burst = 2 }\n";
    let gateway = Gateway::up(&(fixture("one", &["--era", "legacy"]) + role));
    gateway.wait_for("one", "ready");
    let mut nth = 0;
    crate::harness::eventually("a task is over when it is asked for", || {
        nth += 1;
        let token = gateway.token_for(&format!("p{nth}"), "few");
        let caller = taking(&gateway).with_token(&token);
        let id = id_of(&caller.call("one__test_task_required", &json!({"ms": 0})));
        let answer = caller.request("tasks/get", json!({ "taskId": id }));
        if answer["result"]["status"] == "working" {
            return false;
        }
        let data = &answer["error"]["data"];
        assert_eq!(data["code"], "rate_exceeded", "{answer}");
        true
    });
}

#[test]
fn an_answer_to_a_task_reaches_the_server_of_a_worker() {
    let role = "[roles.all]\nallow = [\"one.*\"]\n";
    let hub = Gateway::up(&format!("{role}[principals.w1]\noffers = [\"one\"]\n"));
    let token = hub.token_for("w1", "all");
    let served = fixture("one", &["--era", "modern"]);
    let worker = Worker::join(&hub, &token, &served, &["--offer", "one"]);
    worker.gateway.wait_for("one", "ready");
    crate::harness::eventually("the server is in the hub", || {
        let servers = hub.api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        servers.iter().any(|status| status["name"] == "one")
    });
    hub.wait_for("one", "ready");
    confirms(&taking(&hub), &json!({"filename": "f"}));
}

#[test]
fn a_write_that_can_wait_is_queued_also_for_who_takes_tasks() {
    let mut served = Served::start(&["--era", "legacy"]);
    let config = format!(
        "[servers.one]\nurl = {}\ntimeout = \"1s\"\n[servers.one.tools.slow_compute]\n\
         effect = \"write\"\nqueue = \"1h\"\nidempotency = \"meta\"\n",
        json!(served.url)
    );
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    served.kill();
    let told = taking(&gateway).call("one__slow_compute", &json!({"seconds": 0}));
    assert_eq!(
        told["result"]["structuredContent"]["queued"], true,
        "{told}"
    );
}

#[test]
fn a_tool_that_runs_as_a_task_only_is_called_by_way_of_call_tool() {
    let config = config("legacy") + "[gateway]\nexpose = \"search\"\n";
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    let mut caller = taking(&gateway);
    let call = json!({"name": "one__test_task_required", "arguments": {"ms": 20}});
    let id = id_of(&caller.call("call_tool", &call));
    until(&caller, &id, "completed");
    caller.capabilities = json!({});
    let refused = caller.call("call_tool", &call);
    assert_eq!(code(&refused), -32021, "{refused}");
}

#[test]
fn who_takes_no_tasks_is_told_of_none() {
    let gateway = Gateway::up(&config("legacy"));
    let mut caller = taking(&gateway);
    caller.capabilities = json!({});
    let params = json!({"notifications": {"taskIds": ["t"]}});
    let refused = caller.ask(&json!(1), "subscriptions/listen", params);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(code(&refused.json()), -32021);
}
