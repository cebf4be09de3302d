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
