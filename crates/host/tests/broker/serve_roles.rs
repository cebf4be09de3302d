//! Which role may use which tools of an executor, in the list and in calls.

use std::sync::Arc;

use bowline_core::error::{Class, Execution};
use bowline_core::policy::RoleAllowlist;
use bowline_host::ToolOutput;
use bowline_host::broker::{Backend, ExecutorBackend, ServeLimits};
use bowline_host::ports::SystemClock;
use bowline_host::tools::Toolbox;
use bowline_journal::Memory;
use bowline_wire::broker::{Answer, Ask, From};
use serde_json::json;

use super::post::{Side, call, failure, incoming, output};

fn side(list: &RoleAllowlist) -> Side {
    Side::with(Arc::new(Memory::default()), list, ServeLimits::default())
}

async fn listed(side: &Side, role: Option<&str>) -> Vec<String> {
    let who = ("ann", role);
    let request = incoming(who, "list", Ask::Manifest.to_bytes(), side.until());
    let stored = side.carried(request.clone()).await.answer();
    assert_eq!(side.serving.live(request).await, stored);
    let Answer::Manifest { items, revision } = stored else {
        panic!("{stored:?}")
    };
    assert!(revision < 1 << 53);
    items.iter().map(|item| item.name.to_string()).collect()
}

const ALL: [&str; 6] = ["write", "read", "fail", "break", "panic", "hang"];

#[tokio::test(start_paused = true)]
async fn the_manifest_is_cut_down_for_a_listed_role_and_whole_for_others() {
    let side = side(&RoleAllowlist::from_entries([(
        "reader",
        vec!["read", "gone"],
    )]));
    assert_eq!(listed(&side, Some("reader")).await, ["read"]);
    assert_eq!(listed(&side, Some("unlisted")).await, ALL);
    assert_eq!(
        listed(&side, Some("Reader")).await,
        ALL,
        "exactly that name"
    );
    assert_eq!(listed(&side, None).await, ALL);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_tool_that_is_not_listed_is_refused_by_name_and_does_not_run() {
    let side = side(&RoleAllowlist::unrestricted().with_role("reader", ["read"]));
    let request = |role, tool| incoming(("ann", role), tool, call(tool, "{}"), side.until());
    let refused = side.carried(request(Some("reader"), "write")).await;
    let told = failure(refused.answer());
    assert_eq!((&*told.code, told.class), ("policy_denied", Class::Denied));
    assert_eq!(told.execution, Execution::NotStarted);
    assert_eq!(
        *told.reason,
        *"tool `write` is not allowed for role `reader`"
    );
    let live = side.serving.live(request(Some("reader"), "write")).await;
    assert_eq!(failure(live), told);
    assert_eq!(side.runs.count(), 0);
    output(&side.carried(request(Some("reader"), "read")).await.answer());
    output(&side.carried(request(None, "write")).await.answer());
    assert_eq!(side.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_role_with_an_empty_list_sees_and_runs_nothing() {
    let side = side(&RoleAllowlist::unrestricted().with_role("locked", [""; 0]));
    assert!(listed(&side, Some("locked")).await.is_empty());
    let request = incoming(
        ("ann", Some("locked")),
        "1",
        call("read", "{}"),
        side.until(),
    );
    let told = failure(side.carried(request).await.answer());
    assert_eq!(
        *told.reason,
        *"tool `read` is not allowed for role `locked`"
    );
    assert_eq!(side.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_may_deny_all_who_are_not_on_it() {
    let list = RoleAllowlist::unrestricted().with_role("reader", ["read"]);
    let side = side(&list.deny_others());
    assert_eq!(listed(&side, Some("reader")).await, ["read"]);
    assert!(listed(&side, Some("unlisted")).await.is_empty());
    assert!(listed(&side, None).await.is_empty());
    let told = failure(side.carried(side.request("1", "read")).await.answer());
    assert_eq!(*told.reason, *"tool `read` is not allowed without a role");
}

#[tokio::test(start_paused = true)]
async fn a_role_that_is_taken_away_changes_nothing_of_what_ran_before() {
    let side = side(&RoleAllowlist::unrestricted().with_role("reader", ["read"]));
    let request = |role| incoming(("ann", role), "1", call("write", "{}"), side.until());
    side.carried(request(None)).await;
    let again = side.carried(request(Some("reader"))).await;
    assert_eq!(
        output(&again.answer()).0["structuredContent"]["nth"],
        json!(1)
    );
    assert_eq!(side.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_a_whole_name_or_a_server_and_its_tool() {
    let names = [
        "files",
        "files__read",
        "files__write",
        "fs.read",
        "fs.write",
    ];
    let any = json!({"type": "object"});
    let tools = names.iter().fold(Toolbox::default(), |tools, name| {
        tools.with((*name, ""), &any, |_, _| async {
            Ok(ToolOutput::of_text("ran"))
        })
    });
    let tools = Arc::new(tools);
    let check = async |entries: &[&str], seen: &[&str]| {
        let list = RoleAllowlist::unrestricted().with_role("r", entries);
        let clock = Arc::new(SystemClock::start());
        let backend = ExecutorBackend::new(tools.clone(), &list, clock);
        let who = From {
            session_id: "ann".into(),
            role: Some("r".into()),
            principal: None,
        };
        let listed = backend.manifest(&who, None).await.unwrap();
        let listed: Vec<_> = listed.items.iter().map(|item| &*item.name).collect();
        assert_eq!(listed, seen, "{entries:?}");
    };
    check(&["files"], &["files"]).await;
    check(&["files__read"], &["files__read"]).await;
    check(&["files.*"], &["files__read", "files__write"]).await;
    check(&["files.write", "fs.read"], &["files__write", "fs.read"]).await;
    check(&["files*"], &["files", "files__read", "files__write"]).await;
    let whole_too = ["files", "files__read", "files__write"];
    check(&["files.*", "files"], &whole_too).await;
    check(&["*"], &names).await;
}
