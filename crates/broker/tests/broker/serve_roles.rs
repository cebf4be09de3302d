//! Tools of an executor by role, in manifests and in calls.

use std::sync::Arc;

use bowline_broker::frames::{BrokerRequest, BrokerResponse, MessageSender};
use bowline_broker::{Backend, ExecutorBackend, ServeLimits};
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_core::policy::RoleAllowlist;
use bowline_journal::MemoryJournal;
use bowline_runtime::SystemClock;
use bowline_testkit::serve_rig::{ServeRig, call, failure, incoming, output};
use bowline_tools::ToolOutput;
use bowline_tools::Toolbox;
use serde_json::json;

fn serve_rig(list: &RoleAllowlist) -> ServeRig {
    ServeRig::with_journal(
        Arc::new(MemoryJournal::default()),
        list,
        ServeLimits::default(),
    )
}

async fn list_tools(side: &ServeRig, role: Option<&str>) -> Vec<String> {
    let request = incoming(
        "ann",
        role,
        "list",
        BrokerRequest::Manifest.to_bytes(),
        side.deadline(),
    );
    let stored = side.handle_stored(request.clone()).await.single_reply();
    assert_eq!(side.serving.handle_live(request).await, stored);
    let BrokerResponse::Manifest { items, revision } = stored else {
        panic!("{stored:?}")
    };
    assert!(revision < 1 << 53);
    items.iter().map(|item| item.name.to_string()).collect()
}

const ALL: [&str; 6] = ["write", "read", "fail", "break", "panic", "hang"];

#[tokio::test(start_paused = true)]
async fn listed_role_restricts_the_manifest() {
    let side = serve_rig(&RoleAllowlist::from_entries([(
        "reader",
        vec!["read", "gone"],
    )]));
    assert_eq!(list_tools(&side, Some("reader")).await, ["read"]);
    assert_eq!(list_tools(&side, Some("unlisted")).await, ALL);
    assert_eq!(
        list_tools(&side, Some("Reader")).await,
        ALL,
        "exactly that name"
    );
    assert_eq!(list_tools(&side, None).await, ALL);
}

#[tokio::test(start_paused = true)]
async fn unlisted_tool_call_is_refused() {
    let side = serve_rig(&RoleAllowlist::unrestricted().with_role("reader", ["read"]));
    let request = |role, tool| incoming("ann", role, tool, call(tool, "{}"), side.deadline());
    let refused = side.handle_stored(request(Some("reader"), "write")).await;
    let told = failure(refused.single_reply());
    assert_eq!(
        (&*told.code, told.class),
        ("policy_denied", FailureClass::Denied)
    );
    assert_eq!(told.execution, ExecutionStatus::NotStarted);
    assert_eq!(
        *told.reason,
        *"tool `write` is not allowed for role `reader`"
    );
    let live = side
        .serving
        .handle_live(request(Some("reader"), "write"))
        .await;
    assert_eq!(failure(live), told);
    assert_eq!(side.runs.count(), 0);
    output(
        &side
            .handle_stored(request(Some("reader"), "read"))
            .await
            .single_reply(),
    );
    output(
        &side
            .handle_stored(request(None, "write"))
            .await
            .single_reply(),
    );
    assert_eq!(side.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn empty_role_list_denies_everything() {
    let side = serve_rig(&RoleAllowlist::unrestricted().with_role("locked", [""; 0]));
    assert!(list_tools(&side, Some("locked")).await.is_empty());
    let request = incoming(
        "ann",
        Some("locked"),
        "1",
        call("read", "{}"),
        side.deadline(),
    );
    let told = failure(side.handle_stored(request).await.single_reply());
    assert_eq!(
        *told.reason,
        *"tool `read` is not allowed for role `locked`"
    );
    assert_eq!(side.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn allowlist_can_deny_unlisted_roles() {
    let list = RoleAllowlist::unrestricted().with_role("reader", ["read"]);
    let side = serve_rig(&list.deny_others());
    assert_eq!(list_tools(&side, Some("reader")).await, ["read"]);
    assert!(list_tools(&side, Some("unlisted")).await.is_empty());
    assert!(list_tools(&side, None).await.is_empty());
    let told = failure(
        side.handle_stored(side.request("1", "read"))
            .await
            .single_reply(),
    );
    assert_eq!(*told.reason, *"tool `read` is not allowed without a role");
}

#[tokio::test(start_paused = true)]
async fn lost_role_keeps_recorded_responses() {
    let side = serve_rig(&RoleAllowlist::unrestricted().with_role("reader", ["read"]));
    let request = |role| incoming("ann", role, "1", call("write", "{}"), side.deadline());
    side.handle_stored(request(None)).await;
    let again = side.handle_stored(request(Some("reader"))).await;
    assert_eq!(
        output(&again.single_reply()).0["structuredContent"]["nth"],
        json!(1)
    );
    assert_eq!(side.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn entry_matches_full_or_server_tool_name() {
    let names = [
        "files",
        "files__read",
        "files__write",
        "fs.read",
        "fs.write",
    ];
    let any = json!({"type": "object"});
    let tools = names.iter().fold(Toolbox::default(), |tools, name| {
        tools.with(name, "", &any, |_, _| async {
            Ok(ToolOutput::from_text("ran"))
        })
    });
    let tools = Arc::new(tools);
    let check = async |entries: &[&str], seen: &[&str]| {
        let list = RoleAllowlist::unrestricted().with_role("r", entries);
        let clock = Arc::new(SystemClock::start());
        let backend = ExecutorBackend::new(tools.clone(), &list, clock);
        let who = MessageSender {
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
