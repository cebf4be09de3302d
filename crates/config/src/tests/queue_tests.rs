//! Queueable tools and idempotency keys.

use bowline_core::lane::KeyChannel;

use super::*;

fn parse_tool(lines: &str) -> Result<ToolRule, String> {
    let text = format!("[servers.a]\nurl = \"http://127.0.0.1/\"\n[servers.a.tools.t]\n{lines}\n");
    let config = parse_toml(&text, &EnvVars::default())?;
    Ok(config.servers[0].tools["t"].clone())
}

#[test]
fn queued_tool_has_ttl_and_key_channel() {
    for (written, channel) in [
        (
            "argument:idempotencyKey",
            KeyChannel::Argument("idempotencyKey".into()),
        ),
        (
            "header:Idempotency-Key",
            KeyChannel::Header("idempotency-key".into()),
        ),
        ("meta", KeyChannel::Meta),
    ] {
        let rule = parse_tool(&format!("queue = \"24h\"\nidempotency = \"{written}\"")).unwrap();
        let expected = ToolRule {
            queue: Some(Duration::from_secs(86_400)),
            idempotency: channel,
            ..ToolRule::default()
        };
        assert_eq!(rule, expected, "{written}");
    }
    let text = r#"{"mcpServers": {"a": {"command": "a", "x-bowline": {"tools": {"t":
        {"queue": "24h", "idempotency": "meta"}}}}}, "x-bowline": {"journal": {"engine": "memory"}}}"#;
    let config = parse_json(text).unwrap();
    assert_eq!(config.servers[0].tools["t"].idempotency, KeyChannel::Meta);
    assert_eq!(config.journal, JournalEngine::Memory);
    assert_eq!(
        config.warnings[0].message,
        "`journal.engine` is \"memory\": queued calls are lost when the gateway ends"
    );
    assert_eq!(Config::default().journal, JournalEngine::Sqlite);
}

#[test]
fn queueing_requires_key_or_idempotent_tool() {
    let report = parse_tool("queue = \"24h\"").unwrap_err();
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
    let report = parse_tool("queue = \"24h\"\nidempotency = \"none\"").unwrap_err();
    assert!(report.contains("cannot be queued"), "{report}");
    let rule = parse_tool("queue = \"24h\"\nidempotent = true").unwrap();
    assert_eq!(
        (rule.idempotent, rule.idempotency),
        (Some(true), KeyChannel::None)
    );
}

#[test]
fn unqueueable_tool_is_refused_at_key() {
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
        let report = parse_tool(lines).unwrap_err();
        assert!(report.contains(message), "{lines}: {report}");
        // An unparsable value is reported once, not also as missing.
        assert_eq!(report.matches("error[").count(), 1, "{lines}: {report}");
    }
    let text = "[servers.a]\ncommand = \"a\"\n\
                [servers.a.tools.t]\nqueue = \"1h\"\nidempotency = \"header:X-Key\"\n";
    let report = parse_toml(text, &EnvVars::default()).unwrap_err();
    assert!(
        report.contains("is started here, so no header carries a key to it")
            && report.contains("bowline.toml:5:15")
            && report.contains("\"argument:NAME\" or \"meta\""),
        "{report}"
    );
}
