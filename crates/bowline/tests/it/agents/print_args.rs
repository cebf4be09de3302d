//! `bowline connect --print-args`.

use super::*;

#[test]
fn print_args_contains_no_secret() {
    let gateway = Gateway::start(&fixture_config("fix", &[]));
    let url = format!("http://{}/mcp", gateway.address);
    let (code, lines, note) = output_parts(&gateway.run_cli(&["connect", "codex", "--print-args"]));
    assert_eq!(code, Some(0), "{note}");
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert!(note.contains("BOWLINE_SESSION_TOKEN"), "{note}");
    let (_, shown, _) =
        output_parts(&gateway.run_cli(&["connect", "codex", "--print-args", "--json"]));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let args: Vec<_> = shown["args"].as_array().unwrap().iter().collect();
    assert_eq!(args.len(), 4);
    assert_eq!(
        args[1],
        &json!(format!("mcp_servers.bowline.url=\"{url}\""))
    );
    assert!(!shown.to_string().contains(&gateway.token));
    let (_, line, _) =
        output_parts(&gateway.run_cli(&["connect", "claude", "--print-args", "--shell"]));
    assert!(line.starts_with("--mcp-config '{\"mcpServers\":"), "{line}");
    // Other forms do not exist yet, so the option is required.
    let (code, _, stderr) = output_parts(&gateway.run_cli(&["connect", "claude"]));
    assert_eq!(code, Some(2), "{stderr}");

    let (dir, file) = config_without_gateway("[gateway]\nlisten = \"127.0.0.1:7444\"\n");
    let output = Command::new(bowline_binary())
        .args(["connect", "claude", "--print-args", "--config"])
        .arg(&file)
        .arg("--state")
        .arg(dir.path().join("state"))
        .output();
    let (code, stdout, _) = output_parts(&output.unwrap());
    assert_eq!(code, Some(0));
    assert!(stdout.contains("http://127.0.0.1:7444/mcp"), "{stdout}");
}

#[test]
fn named_server_gives_its_own_tool_names() {
    let config = [fixture_config("files", &[]), fixture_config("other", &[])].concat();
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("files", "ready");
    let url = format!("http://{}/servers/files/mcp", gateway.address);
    let (code, shown, stderr) = output_parts(&gateway.run_cli(&[
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
    let run = ClientRun::start(&gateway, &["claude", "--server", "files"], |_| {});
    let given = run.read_proc("cmdline").join(" ");
    assert!(given.contains(&format!("\"url\":\"{url}\"")), "{given}");
    let mut session = Session::open(gateway.address, "/servers/files/mcp", Some(&run.token));
    let tools = session.list_tool_names();
    assert!(tools.contains(&"echo".to_owned()), "{tools:?}");
    assert!(!tools.iter().any(|name| name.contains("__")), "{tools:?}");
    assert_eq!(
        session.call_text("echo", &json!({"message": "plain"})),
        "plain"
    );
    drop(session);
    let mut run = run;
    run.end_client(0);
    let scripts = install_clients(PRINTING_CLIENT);
    let typo = ["claude", "--server", "flies"];
    let outputs = [
        run_command(&gateway.state_dir(), scripts.path(), &typo)
            .output()
            .unwrap(),
        gateway.run_cli(&["connect", "claude", "--print-args", "--server", "flies"]),
    ];
    for output in outputs {
        let (code, stdout, stderr) = output_parts(&output);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains("did you mean files?"), "{stderr}");
    }
    wait_until("no token is left", || list_tokens(&gateway).is_empty());
}

#[test]
fn mistyped_server_starts_no_gateway() {
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{}",
        fixture_config("files", &[])
    );
    let (dir, file) = config_without_gateway(&config);
    let state = dir.path().join("state");
    let scripts = install_clients(PRINTING_CLIENT);
    let args = [
        "--config",
        file.to_str().unwrap(),
        "codex",
        "--server",
        "flies",
    ];
    let output = run_command(&state, scripts.path(), &args).output().unwrap();
    let (code, stdout, stderr) = output_parts(&output);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("did you mean files?"), "{stderr}");
    assert!(!state.exists(), "nothing was started");
}
