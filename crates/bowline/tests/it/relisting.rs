//! Lists of a server that announces no changes are fetched again.

use std::path::Path;

use bowline_testkit::gateway::{Gateway, Session};
use bowline_testkit::wait_until;
use serde_json::json;

use crate::test_servers::shell_server;

/// A shell server: the list is the current content of a file, and every call succeeds. `$$` is an
/// escaped `$` of the configuration.
const SERVER: &str = r#"
while read -r line; do
  case $line in *'"id":'*) ;; *) continue ;; esac
  rest=$${line#*'"id":'}; id=$${rest%%[!0-9]*}
  case $line in
    *'"initialize"'*)
      result='{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},'
      result=$result'"serverInfo":{"name":"n","version":"1"}}' ;;
    *'"tools/list"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":' "$id"; cat "$1"; echo '}'
      continue ;;
    *'"tools/call"'*) result='{"content":[{"type":"text","text":"done"}]}' ;;
    *) result='{}' ;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
"#;

fn write_tool_list(list: &Path, tools: &[&str]) {
    let tools: Vec<_> = tools
        .iter()
        .map(|tool| json!({"name": tool, "inputSchema": {"type": "object"}}))
        .collect();
    std::fs::write(list, json!({"tools": tools}).to_string()).unwrap();
}

fn config_entry(name: &str, list: &Path, more: &str) -> String {
    let server = shell_server(name, SERVER, &[list.to_str().unwrap()]);
    format!("{server}sandbox = \"off\"\n{more}\n")
}

fn listed_names(session: &mut Session) -> Vec<String> {
    let list = session.request("tools/list", &json!({}));
    let tools = list["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

#[test]
fn changed_tools_are_found_by_refresh_and_call() {
    let dir = tempfile::TempDir::new().unwrap();
    let list = dir.path().join("list");
    write_tool_list(&list, &["old"]);
    let gateway = Gateway::start(&config_entry("s", &list, ""));
    gateway.wait_for_state("s", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(listed_names(&mut session), ["s__old"]);

    write_tool_list(&list, &["old", "new"]);
    let told = gateway.run_cli(&["refresh", "s", "--json"]);
    assert!(told.status.success(), "{told:?}");
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let one = &told["refreshed"][0];
    assert_eq!((&told["v"], &one["tools_added"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&one["server"]["name"], &one["failed"]),
        (&json!("s"), &json!([]))
    );
    assert_eq!(listed_names(&mut session), ["s__old", "s__new"]);

    write_tool_list(&list, &["new"]);
    let told = gateway.run_cli(&["refresh"]);
    let text = String::from_utf8(told.stdout).unwrap();
    assert_eq!(text, "s: 1 tools (0 new, 1 gone)\n");
    let wrong = gateway.run_cli(&["refresh", "t", "--json"]);
    assert!(!wrong.status.success());
    let wrong = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.contains("server_not_found"), "{wrong}");

    // A call of an unlisted name makes the gateway list the server again, once the list is a moment
    // old.
    write_tool_list(&list, &["newest"]);
    wait_until("the new tool is called", || {
        session.call("s__newest", &json!({}))["result"]["content"][0]["text"] == "done"
    });
}

#[test]
fn long_lists_are_paged_and_cuts_reported() {
    const TOOLS: usize = 20_000;
    let dir = tempfile::TempDir::new().unwrap();
    let list = dir.path().join("list");
    let about = "x".repeat(400);
    let tools = (0..TOOLS).map(|nth| {
        json!({"name": format!("t{nth}"), "description": about, "inputSchema": {"type": "object"}})
    });
    let text = json!({"tools": tools.collect::<Vec<_>>()}).to_string();
    assert!(
        text.len() > 8 * 1024 * 1024,
        "more than other messages may have"
    );
    std::fs::write(&list, text).unwrap();
    let short = dir.path().join("short");
    let few: Vec<_> = (0..200).map(|nth| format!("t{nth}")).collect();
    write_tool_list(&short, &few.iter().map(String::as_str).collect::<Vec<_>>());
    // A debug build is slow with so many tools, even more beside other tests.
    let patient = "pin = \"off\"\nstart_timeout = \"5m\"";
    let servers = [
        config_entry("all", &list, patient),
        config_entry("cut", &short, "max_list = 100"),
    ];
    let gateway = Gateway::start(&servers.concat());
    assert_eq!(gateway.wait_for_state("all", "ready")["tools"], TOOLS);
    let cut = gateway.wait_for_state("cut", "ready");
    assert_eq!(cut["tools"], 100);
    let left_out = json!([{"list": "tools", "entries": 100, "more": false}]);
    assert_eq!(cut["left_out"], left_out);
    let shown = String::from_utf8(gateway.run_cli(&["ls"]).stdout).unwrap();
    assert!(
        shown.contains("100 tools left out; see max_list"),
        "{shown}"
    );

    let mut session = gateway.open_session("/servers/all/mcp");
    let (mut seen, mut pages, mut params) = (0, 0, json!({}));
    loop {
        let page = session.request("tools/list", &params);
        let page = &page["result"];
        seen += page["tools"].as_array().unwrap().len();
        pages += 1;
        match page.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    assert_eq!(seen, TOOLS);
    assert!(pages > 8, "{pages} pages of a mebibyte");
    assert_eq!(session.call_text("t19999", &json!({})), "done");
}
