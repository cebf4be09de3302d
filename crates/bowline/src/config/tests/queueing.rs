//! Which tools may be queued, and how their servers know a repeated call.

use bowline_core::lane::Channel;

use super::*;

fn tool(lines: &str) -> Result<ToolRule, String> {
    let text = format!("[servers.a]\nurl = \"http://127.0.0.1/\"\n[servers.a.tools.t]\n{lines}\n");
    let config = toml(&text, &Env::default())?;
    Ok(config.servers[0].tools["t"].clone())
}

#[test]
fn a_queued_tool_says_how_long_its_calls_are_kept_and_how_their_key_travels() {
    for (written, channel) in [
        (
            "argument:idempotencyKey",
            Channel::Argument("idempotencyKey".into()),
        ),
        (
            "header:Idempotency-Key",
            Channel::Header("idempotency-key".into()),
        ),
        ("meta", Channel::Meta),
    ] {
        let rule = tool(&format!("queue = \"24h\"\nidempotency = \"{written}\"")).unwrap();
        let expected = ToolRule {
            queue: Some(Duration::from_secs(86_400)),
            idempotency: channel,
            ..ToolRule::default()
        };
        assert_eq!(rule, expected, "{written}");
    }
    let text = r#"{"mcpServers": {"a": {"command": "a", "x-bowline": {"tools": {"t":
        {"queue": "24h", "idempotency": "meta"}}}}}, "x-bowline": {"journal": {"engine": "memory"}}}"#;
    let config = json(text).unwrap();
    assert_eq!(config.servers[0].tools["t"].idempotency, Channel::Meta);
    assert_eq!(config.journal, Engine::Memory);
    assert_eq!(
        config.warnings[0].message,
        "`journal.engine` is \"memory\": queued calls are lost when the gateway ends"
    );
    assert_eq!(Config::default().journal, Engine::Sqlite);
}

#[test]
fn a_tool_whose_server_cannot_deduplicate_is_not_queued_unless_it_is_idempotent() {
    let report = tool("queue = \"24h\"").unwrap_err();
    let expected = "\
error[config]: calls of `t` cannot be queued: repeated, they may run twice
 --> /etc/b/bowline.toml:4:1
  |
4 | queue = \"24h\"
  | ^^^^^ how does the server know a repeated call?
  |
  = help: add idempotency = \"argument:NAME\", \"header:NAME\" or \"meta\" if the server knows a \
call again by such a key, or idempotent = true if running it twice is like running it once";
    assert_eq!(report, expected);
    let report = tool("queue = \"24h\"\nidempotency = \"none\"").unwrap_err();
    assert!(report.contains("cannot be queued"), "{report}");
    let rule = tool("queue = \"24h\"\nidempotent = true").unwrap();
    assert_eq!(
        (rule.idempotent, rule.idempotency),
        (Some(true), Channel::None)
    );
}

#[test]
fn what_cannot_be_queued_as_written_is_refused_where_it_stands() {
    for (lines, message) in [
        (
            "queue = \"24h\"\neffect = \"read\"",
            "`t` is a read, so its calls cannot be queued",
        ),
        (
            "idempotency = \"meta\"",
            "`idempotency` of `t` has no use without `queue`",
        ),
        ("queue = true", "`queue` must be a duration"),
        ("queue = \"0s\"", "`queue` must be a duration"),
        (
            "queue = \"1h\"\nidempotency = \"argument:\"",
            "`idempotency` must be \"argument:NAME\", \"header:NAME\", \"meta\" or \"none\"",
        ),
        (
            "queue = \"1h\"\nidempotency = \"header:a b\"",
            "`idempotency` must be",
        ),
        (
            "queue = \"1h\"\nidempotency = \"header:Authorization\"",
            "`idempotency` must be",
        ),
        (
            "queue = \"1h\"\nidempotency = \"header:Mcp-Session-Id\"",
            "`idempotency` must be",
        ),
        (
            "queue = \"1h\"\nidempotency = \"mata\"",
            "`idempotency` must be",
        ),
        ("[journal]\nengine = \"sqlit\"", "did you mean \"sqlite\"?"),
        ("[journal]\nfile = \"x\"", "unknown key `file` in [journal]"),
    ] {
        let report = tool(lines).unwrap_err();
        assert!(report.contains(message), "{lines}: {report}");
        // What cannot be read is told once, not as missing as well.
        assert_eq!(report.matches("error[").count(), 1, "{lines}: {report}");
    }
    let text = "[servers.a]\ncommand = \"a\"\n\
                [servers.a.tools.t]\nqueue = \"1h\"\nidempotency = \"header:X-Key\"\n";
    let report = toml(text, &Env::default()).unwrap_err();
    assert!(
        report.contains("is started here, so no header carries a key to it")
            && report.contains("bowline.toml:5:15")
            && report.contains("\"argument:NAME\" or \"meta\""),
        "{report}"
    );
}
