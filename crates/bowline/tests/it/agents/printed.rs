//! `bowline connect --print-args`.

use super::*;

#[test]
fn the_arguments_are_printed_without_a_secret() {
    let gateway = Gateway::up(&fixture("fix", &[]));
    let url = format!("http://{}/mcp", gateway.address);
    let (code, lines, note) = told(&gateway.cli(&["connect", "codex", "--print-args"]));
    assert_eq!(code, Some(0), "{note}");
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert!(note.contains("BOWLINE_SESSION_TOKEN"), "{note}");
    let (_, shown, _) = told(&gateway.cli(&["connect", "codex", "--print-args", "--json"]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let args: Vec<_> = shown["args"].as_array().unwrap().iter().collect();
    assert_eq!(args.len(), 4);
    assert_eq!(
        args[1],
        &json!(format!("mcp_servers.bowline.url=\"{url}\""))
    );
    assert!(!shown.to_string().contains(&gateway.token));
    let (_, line, _) = told(&gateway.cli(&["connect", "claude", "--print-args", "--shell"]));
    assert!(line.starts_with("--mcp-config '{\"mcpServers\":"), "{line}");
    // Nothing else is built yet, so that it must be asked for.
    let (code, _, stderr) = told(&gateway.cli(&["connect", "claude"]));
    assert_eq!(code, Some(2), "{stderr}");

    let (dir, file) = nowhere("[gateway]\nlisten = \"127.0.0.1:7444\"\n");
    let output = Command::new(bowline())
        .args(["connect", "claude", "--print-args", "--config"])
        .arg(&file)
        .arg("--state")
        .arg(dir.path().join("state"))
        .output();
    let (code, stdout, _) = told(&output.unwrap());
    assert_eq!(code, Some(0));
    assert!(stdout.contains("http://127.0.0.1:7444/mcp"), "{stdout}");
}

#[test]
fn named_server_gives_its_own_tool_names() {
    let config = [fixture("files", &[]), fixture("other", &[])].concat();
    let gateway = Gateway::up(&config);
    gateway.wait_for("files", "ready");
    let url = format!("http://{}/servers/files/mcp", gateway.address);
    let (code, shown, stderr) = told(&gateway.cli(&[
        "connect",
        "codex",
        "--print-args",
        "--json",
        "--server",
        "files",
    ]));
    assert_eq!(code, Some(0), "{stderr}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["url"], url);
    let run = Run::start(&gateway, &["claude", "--server", "files"], |_| {});
    let given = run.proc("cmdline").join(" ");
    assert!(given.contains(&format!("\"url\":\"{url}\"")), "{given}");
    let mut session = Session::open(gateway.address, "/servers/files/mcp", Some(&run.token));
    let tools = session.tools();
    assert!(tools.contains(&"echo".to_owned()), "{tools:?}");
    assert!(!tools.iter().any(|name| name.contains("__")), "{tools:?}");
    assert_eq!(session.text("echo", &json!({"message": "plain"})), "plain");
    drop(session);
    let mut run = run;
    run.end(0);
    let scripts = clients(TELLING);
    let typo = ["claude", "--server", "flies"];
    let outputs = [
        command(&gateway.state(), scripts.path(), &typo)
            .output()
            .unwrap(),
        gateway.cli(&["connect", "claude", "--print-args", "--server", "flies"]),
    ];
    for output in outputs {
        let (code, stdout, stderr) = told(&output);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains("did you mean files?"), "{stderr}");
    }
    eventually("no token is left", || tokens(&gateway).is_empty());
}

#[test]
fn mistyped_server_starts_no_gateway() {
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{}",
        fixture("files", &[])
    );
    let (dir, file) = nowhere(&config);
    let state = dir.path().join("state");
    let scripts = clients(TELLING);
    let args = [
        "--config",
        file.to_str().unwrap(),
        "codex",
        "--server",
        "flies",
    ];
    let output = command(&state, scripts.path(), &args).output().unwrap();
    let (code, stdout, stderr) = told(&output);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("did you mean files?"), "{stderr}");
    assert!(!state.exists(), "nothing was started");
}
