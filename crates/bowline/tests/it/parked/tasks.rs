//! Tasks of sessionless clients, over servers of both eras.

use bowline_testkit::gateway::{FixtureServer, Gateway, Worker, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::{StatelessClient, request_state};

/// A client that accepts tasks.
fn task_client(gateway: &Gateway) -> StatelessClient {
    let mut caller = StatelessClient::new(gateway, "/mcp");
    caller.capabilities["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
    caller
}

/// A client of another principal.
fn other_principal_client(gateway: &Gateway) -> StatelessClient {
    task_client(gateway).with_token(&gateway.create_role_token("bob", "all"))
}

/// Checks a result that names a task, and returns the id.
fn task_id(answer: &Value) -> String {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "task", "{answer}");
    for key in ["status", "createdAt", "lastUpdatedAt"] {
        assert!(result[key].is_string(), "{answer}");
    }
    assert!(result.get("ttlMs").is_some() && result.get("ttl").is_none());
    result["taskId"].as_str().unwrap().to_owned()
}

fn get_task(caller: &StatelessClient, id: &str) -> Value {
    let answer = caller.request_response("tasks/get", json!({ "taskId": id }));
    let result = &answer["result"];
    assert_eq!(result["resultType"], "complete", "{answer}");
    assert_eq!(result["taskId"], *id, "{answer}");
    result.clone()
}

/// Polls until the task has this status; a final status does not change.
fn wait_for_status(caller: &StatelessClient, id: &str, status: &str) -> Value {
    let mut last = Value::Null;
    wait_until(&format!("it is {status}"), || {
        last = get_task(caller, id);
        let is_there = last["status"] == status;
        let mut ends = ["completed", "failed", "cancelled"].iter();
        let is_over = ends.any(|end| last["status"] == **end);
        assert!(is_there || !is_over, "{last}");
        is_there
    });
    last
}

fn error_code(answer: &Value) -> i64 {
    answer["error"]["code"]
        .as_i64()
        .unwrap_or_else(|| panic!("{answer}"))
}

/// Rules that hold over every server.
fn assert_task_rules(gateway: &Gateway) {
    gateway.wait_for_state("one", "ready");
    let caller = task_client(gateway);
    assert_task_completes(&caller);
    assert_task_cancels(&caller);
    assert_tasks_private(gateway, &caller);
}

fn assert_task_completes(caller: &StatelessClient) {
    let made = caller.call_tool(
        "one__test_task_required",
        &json!({"ms": 20, "message": "done"}),
    );
    let id = task_id(&made);
    let over = wait_for_status(caller, &id, "completed");
    assert_eq!(over["result"]["content"][0]["text"], "done", "{over}");
    // A failing tool completes the task; a protocol error fails the task.
    let id = task_id(&caller.call_tool("one__failing_job", &json!({})));
    let over = wait_for_status(caller, &id, "completed");
    assert_eq!(over["result"]["isError"], true, "{over}");
    let id = task_id(&caller.call_tool("one__protocol_error_job", &json!({})));
    let over = wait_for_status(caller, &id, "failed");
    assert_eq!(over["error"]["code"], -32603, "{over}");
    assert!(over.get("result").is_none(), "{over}");
}

fn assert_task_cancels(caller: &StatelessClient) {
    let made = caller.call_tool("one__slow_compute", &json!({"seconds": 600}));
    let id = task_id(&made);
    assert_eq!(get_task(caller, &id)["status"], "working");
    for _ in 0..2 {
        let answer = caller.request_response("tasks/cancel", json!({ "taskId": id }));
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        assert!(answer["result"].get("taskId").is_none(), "{answer}");
        wait_for_status(caller, &id, "cancelled");
    }
    let nothing = json!({ "taskId": id, "inputResponses": {"nobody": {}} });
    let answer = caller.request_response("tasks/update", nothing);
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

fn assert_tasks_private(gateway: &Gateway, caller: &StatelessClient) {
    let id = task_id(&caller.call_tool("one__slow_compute", &json!({"seconds": 600})));
    let mut cannot = caller.clone();
    cannot.capabilities = json!({});
    let params = json!({ "taskId": id });
    let refused = cannot.send_and_read(&json!(1), "tasks/get", params.clone());
    assert_eq!(refused.status, 400);
    let error = &refused.json()["error"];
    assert_eq!(error["code"], -32021, "{error}");
    let needed = &error["data"]["requiredCapabilities"]["extensions"];
    assert!(
        needed["io.modelcontextprotocol/tasks"].is_object(),
        "{error}"
    );
    let refused = cannot.call_tool("one__test_task_required", &json!({}));
    assert_eq!(error_code(&refused), -32021, "{refused}");
    let bob = other_principal_client(gateway);
    let forged = json!({ "taskId": format!("{id}A") });
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(
            error_code(&bob.request_response(method, params.clone())),
            -32602
        );
        assert_eq!(
            error_code(&caller.request_response(method, forged.clone())),
            -32602
        );
    }
    assert_eq!(get_task(caller, &id)["status"], "working");
    for removed in ["tasks/result", "tasks/list"] {
        let gone = caller.send_and_read(&json!(1), removed, params.clone());
        assert_eq!(gone.status, 404, "{removed}");
    }
}

/// Lets a task elicit, answers, and waits for the end.
fn confirm_task(caller: &StatelessClient, arguments: &Value) {
    let id = task_id(&caller.call_tool("one__confirm_delete", arguments));
    let asked = wait_for_status(caller, &id, "input_required");
    let question = &asked["inputRequests"]["confirm"];
    assert_eq!(question["method"], "elicitation/create", "{asked}");
    let yes = json!({"action": "accept", "content": {"confirm": true}});
    let update = json!({ "taskId": id, "inputResponses": {"confirm": yes} });
    let answer = caller.request_response("tasks/update", update);
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    let over = wait_for_status(caller, &id, "completed");
    let said = over["result"]["content"][0]["text"].as_str().unwrap();
    assert!(said.contains(r#""confirm":true"#), "{over}");
}

/// The role of the second principal.
const ROLE: &str = "[roles.all]\nallow = [\"one.*\"]\n[principals.bob]\nrole = \"all\"\n";

fn era_config(era: &str) -> String {
    fixture_config("one", &["--era", era]) + ROLE
}

#[test]
fn legacy_tasks_appear_as_extension_tasks() {
    assert_task_rules(&Gateway::start(&era_config("legacy")));
}

#[test]
fn modern_task_ids_are_sealed_per_caller() {
    let gateway = Gateway::start(&era_config("modern"));
    assert_task_rules(&gateway);
    let caller = task_client(&gateway);
    confirm_task(&caller, &json!({"filename": "f"}));
    // An elicitation before the task starts is a normal input-required result.
    let asked = caller.call_tool("one__test_tool_with_task", &json!({}));
    let name = json!({"user_name": {"action": "accept", "content": {"name": "x"}}});
    let made = caller.retry_with_answers(
        "one__test_tool_with_task",
        &json!({}),
        &name,
        &request_state(&asked),
    );
    wait_for_status(&caller, &task_id(&made), "completed");
}

#[test]
fn task_is_found_after_restart() {
    let served = FixtureServer::start(&["--era", "modern"]);
    let config = format!("[servers.one]\nurl = {}\n", json!(served.url));
    let mut gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let made = task_client(&gateway).call_tool("one__test_task_required", &json!({"ms": 20}));
    let id = task_id(&made);
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    let over = wait_for_status(&task_client(&gateway), &id, "completed");
    assert_eq!(over["result"]["content"][0]["text"], "Task completed");
}

/// Starts a long task and returns the id.
fn start_long_task(caller: &StatelessClient, server: &str) -> String {
    let tool = format!("{server}__slow_compute");
    task_id(&caller.call_tool(&tool, &json!({"seconds": 600})))
}

/// Checks for an unknown id.
fn assert_unknown_task(caller: &StatelessClient, id: &str) {
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({ "taskId": id, "inputResponses": {} });
        let answer = caller.request_response(method, params);
        assert_eq!(error_code(&answer), -32602, "{method}: {answer}");
    }
}

#[test]
fn reused_task_id_belongs_to_new_owner() {
    for era in ["legacy", "modern"] {
        let counted = ["--era", era, "--fault", "counted-tasks"];
        let mut gateway = Gateway::start(&(fixture_config("one", &counted) + ROLE));
        gateway.wait_for_state("one", "ready");
        let (ann, other) = (task_client(&gateway), other_principal_client(&gateway));
        let stale = start_long_task(&ann, "one");
        gateway.control_server("one", "restart");
        gateway.wait_for_state("one", "ready");
        let own = start_long_task(&other, "one");
        assert_unknown_task(&ann, &stale);
        assert_eq!(get_task(&other, &own)["status"], "working");
        // This holds without the gateway's memory too: the server process took its tasks along.
        gateway.restart_after_kill();
        gateway.wait_for_state("one", "ready");
        let (ann, other) = (task_client(&gateway), other_principal_client(&gateway));
        assert_unknown_task(&other, &own);
        let last = start_long_task(&ann, "one");
        assert_unknown_task(&other, &own);
        assert_unknown_task(&ann, &stale);
        assert_eq!(get_task(&ann, &last)["status"], "working");
    }
}

#[test]
fn task_id_after_restart_means_same_task() {
    let mut served = FixtureServer::start(&["--era", "modern", "--fault", "counted-tasks"]);
    let config = format!("[servers.one]\nurl = {}\n{ROLE}", json!(served.url));
    let mut gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let stale = start_long_task(&task_client(&gateway), "one");
    served.kill();
    served.restart();
    let mut own = String::new();
    wait_until("it serves again", || {
        let made = other_principal_client(&gateway)
            .call_tool("one__slow_compute", &json!({"seconds": 600}));
        let is_made = made["result"].is_object();
        if is_made {
            own = task_id(&made);
        }
        is_made
    });
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    // No owner is remembered for the id, and it now names another task.
    assert_unknown_task(&task_client(&gateway), &stale);
    assert_eq!(
        get_task(&other_principal_client(&gateway), &own)["status"],
        "working"
    );
}

#[test]
fn equal_task_ids_of_two_servers_differ() {
    let counted = ["--era", "modern", "--fault", "counted-tasks"];
    let config = fixture_config("one", &counted) + &fixture_config("two", &counted);
    let gateway = Gateway::start(&config);
    for server in ["one", "two"] {
        gateway.wait_for_state(server, "ready");
    }
    let caller = task_client(&gateway);
    let (first, second) = (
        start_long_task(&caller, "one"),
        start_long_task(&caller, "two"),
    );
    for id in [&first, &second] {
        assert_eq!(get_task(&caller, id)["status"], "working");
    }
    caller.request_response("tasks/cancel", json!({ "taskId": second }));
    wait_for_status(&caller, &second, "cancelled");
    assert_eq!(get_task(&caller, &first)["status"], "working");
    let elsewhere = caller.with_path("/servers/two/mcp");
    assert_unknown_task(&elsewhere, &first);
}

#[test]
fn legacy_task_request_is_answered_by_polling() {
    let gateway = Gateway::start(&era_config("legacy"));
    gateway.wait_for_state("one", "ready");
    for _ in 0..2 {
        confirm_task(&task_client(&gateway), &json!({"filename": "f"}));
    }
}

#[test]
fn long_task_outlasts_call_deadline() {
    let config = fixture_config("one", &["--era", "legacy"]) + "timeout = \"1s\"\n";
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    confirm_task(
        &task_client(&gateway),
        &json!({"filename": "f", "ms": 1_500}),
    );
}

#[test]
fn unavailable_result_does_not_fail_task() {
    let role = "[roles.few]\nallow = [\"one.*\"]\nrate = { calls = 1, per = \"12h\", burst = 2 }\n";
    let gateway = Gateway::start(&(fixture_config("one", &["--era", "legacy"]) + role));
    gateway.wait_for_state("one", "ready");
    let mut nth = 0;
    wait_until("a task is over when it is asked for", || {
        nth += 1;
        let token = gateway.create_role_token(&format!("p{nth}"), "few");
        let caller = task_client(&gateway).with_token(&token);
        let id = task_id(&caller.call_tool("one__test_task_required", &json!({"ms": 0})));
        let answer = caller.request_response("tasks/get", json!({ "taskId": id }));
        if answer["result"]["status"] == "working" {
            return false;
        }
        let data = &answer["error"]["data"];
        assert_eq!(data["code"], "rate_exceeded", "{answer}");
        true
    });
}

#[test]
fn task_answer_reaches_worker_server() {
    let role = "[roles.all]\nallow = [\"one.*\"]\n";
    let hub = Gateway::start(&format!("{role}[principals.w1]\noffers = [\"one\"]\n"));
    let token = hub.create_role_token("w1", "all");
    let served = fixture_config("one", &["--era", "modern"]);
    let worker = Worker::join(&hub, &token, &served, &["--offer", "one"]);
    worker.gateway.wait_for_state("one", "ready");
    wait_until("the server is in the hub", || {
        let servers = hub.get_api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        servers.iter().any(|status| status["name"] == "one")
    });
    hub.wait_for_state("one", "ready");
    confirm_task(&task_client(&hub), &json!({"filename": "f"}));
}

#[test]
fn queueable_write_of_task_client_is_queued() {
    let mut served = FixtureServer::start(&["--era", "legacy"]);
    let config = format!(
        "[servers.one]\nurl = {}\ntimeout = \"1s\"\n[servers.one.tools.slow_compute]\n\
         effect = \"write\"\nqueue = \"1h\"\nidempotency = \"meta\"\n",
        json!(served.url)
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    served.kill();
    let told = task_client(&gateway).call_tool("one__slow_compute", &json!({"seconds": 0}));
    assert_eq!(
        told["result"]["structuredContent"]["queued"], true,
        "{told}"
    );
}

#[test]
fn task_only_tool_works_through_call_tool() {
    let config = era_config("legacy") + "[gateway]\nexpose = \"search\"\n";
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    let mut caller = task_client(&gateway);
    let call = json!({"name": "one__test_task_required", "arguments": {"ms": 20}});
    let id = task_id(&caller.call_tool("call_tool", &call));
    wait_for_status(&caller, &id, "completed");
    caller.capabilities = json!({});
    let refused = caller.call_tool("call_tool", &call);
    assert_eq!(error_code(&refused), -32021, "{refused}");
}

#[test]
fn client_without_tasks_sees_none() {
    let gateway = Gateway::start(&era_config("legacy"));
    let mut caller = task_client(&gateway);
    caller.capabilities = json!({});
    let params = json!({"notifications": {"taskIds": ["t"]}});
    let refused = caller.send_and_read(&json!(1), "subscriptions/listen", params);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(error_code(&refused.json()), -32021);
}
