//! What a file says of executors, at the gateway and at the executor itself.

use bowline_core::egress::Rule;
use bowline_wire::executor::Fill;

use super::*;

const GATEWAY: &str = r#"
[executors.office]
url = "wss://executor.example:8790"
protocol = "exec-server"
token = "${TOKEN}"
[principals.lab]
executors = ["office", "lab-*"]
[servers.tracker]
url = "https://tracker.example/mcp"
headers = { Authorization = "Bearer ${executor:tracker}", X-Plain = "${TOKEN}" }
via = "executor:office"
[servers.files]
via = "executor:office"
[servers.notes]
via = "executor:lab-2"
server = "files"
"#;

fn env() -> Env {
    Env::of([("TOKEN", "canary")])
}

#[test]
fn executors_and_what_goes_through_them_are_read_from_both_syntaxes() {
    let config = toml(GATEWAY, &env()).unwrap();
    let office = &config.executors["office"];
    assert_eq!(office.url.to_string(), "https://executor.example:8790/");
    assert_eq!(office.protocol, Protocol::ExecServer);
    assert_eq!(office.token.as_ref().unwrap().value().unwrap(), "canary");
    let names: Vec<_> = config.policy.executors["lab"]
        .iter()
        .map(|pattern| pattern.as_str().to_owned())
        .collect();
    assert_eq!(names, ["office", "lab-*"]);
    assert!(config.policy.peers.is_empty() && config.policy.principals.is_empty());
    let Reach::Remote(tracker) = &config.servers[0].reach else {
        panic!("{config:?}");
    };
    let fill = Fill {
        header: "authorization".into(),
        before: "Bearer ".into(),
        secret: "tracker".into(),
        after: "".into(),
    };
    let via = Via {
        executor: "office".into(),
        fills: vec![fill],
    };
    assert_eq!(tracker.via.as_ref(), Some(&via));
    assert_eq!(tracker.headers.len(), 1);
    let placed = |executor: &str, server: &str| {
        Reach::Placed(Placed {
            executor: executor.into(),
            server: server.into(),
        })
    };
    assert_eq!(config.servers[1].reach, placed("office", "files"));
    assert_eq!(config.servers[2].reach, placed("lab-2", "files"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(!format!("{config:?}").contains("canary"));
    let same = r#"{"x-bowline": {
      "executors": {"office": {"url": "wss://executor.example:8790",
        "protocol": "exec-server", "token": "${TOKEN}"}},
      "principals": {"lab": {"executors": ["office", "lab-*"]}}
    }, "mcpServers": {
      "tracker": {"url": "https://tracker.example/mcp", "x-bowline": {"via": "executor:office"},
        "headers": {"Authorization": "Bearer ${executor:tracker}", "X-Plain": "${TOKEN}"}},
      "files": {"x-bowline": {"via": "executor:office"}},
      "notes": {"x-bowline": {"via": "executor:lab-2", "server": "files"}}
    }}"#;
    let same = parse(same, Path::new("/etc/b/mcp.json"), &env()).unwrap();
    assert_eq!(same.executors, config.executors);
    assert_eq!(same.policy, config.policy);
    assert_eq!(same.servers, config.servers);
}

#[test]
fn what_a_machine_does_as_an_executor_is_read() {
    let text = r#"
[executor]
allow = ["tracker.example:443", "10.1.0.0/16:*"]
[executor.servers.tracker]
allow = ["[fd00::1]:80"]
[executor.secrets.tracker]
value = "${TOKEN}"
to = ["tracker.example:443"]
[executor.secrets.any]
value = "plain"
to = ["10.1.0.0/16:*"]
[servers.files]
command = "files"
"#;
    let config = toml(text, &env()).unwrap();
    let servant = &config.servant;
    let rules =
        |texts: &[&str]| -> Vec<Rule> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let first = ["tracker.example:443", "10.1.0.0/16:*"];
    assert_eq!(servant.allow, rules(&first));
    assert_eq!(servant.servers["tracker"], rules(&["[fd00::1]:80"]));
    let tracker = &servant.secrets["tracker"];
    assert_eq!(tracker.value.value().unwrap(), "canary");
    assert_eq!(tracker.to.rules(), rules(&first[..1]));
    assert_eq!(servant.secrets["any"].to.rules(), rules(&first[1..]));
    assert!(!format!("{config:?}").contains("canary"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let unset = toml(text, &Env::default()).unwrap();
    let message = &unset.warnings[0].message;
    assert!(message.contains("`executor.secrets.tracker`"), "{message}");
}

#[test]
fn what_cannot_be_said_of_executors_is_refused_with_its_line_and_a_way_out() {
    for (text, expected) in [
        (
            "[executors.a]\nurl = \"ftp://h\"",
            "cannot be reached at this `url`",
        ),
        ("[executors.a]\nurll = \"ws://h\"", "did you mean `url`?"),
        (
            "[executors.a]\nprotocol = \"exec\"",
            "`protocol` cannot be \"exec\"",
        ),
        (
            "[executors.a]\nprotocol = \"bowlin\"",
            "did you mean \"bowline\"?",
        ),
        ("\n[executors.A_b]\nurl = \"ws://h\"", "rename it to `a-b`"),
        ("\n[executors.a]\n", "executor `a` has no `url`"),
        (
            "[principals.a]\nexecutors = [\"a.b\"]",
            "`a.b` names no executor",
        ),
        ("[executor]\nalow = []", "did you mean `allow`?"),
        (
            "[executor]\nallow = [\"https://h/x\"]",
            "`https://h/x` names no place",
        ),
        ("[executor.servers.a]\nallow = [\"h\"]", "ends with a port"),
        (
            "[executor.secrets.a]\nvalu = \"x\"",
            "did you mean `value`?",
        ),
        ("\n[executor.secrets.a]\n", "secret `a` has no `value`"),
        (
            "\n[executor.secrets.a]\nvalue = \"x\"",
            "secret `a` has no `to`",
        ),
        (
            "[servers.a]\nvia = \"office\"",
            "did you mean \"executor:office\"?",
        ),
        (
            "[servers.a]\nvia = \"exector:office\"",
            "did you mean \"executor:\"?",
        ),
        (
            "[servers.a]\nvia = \"executor:Office\"",
            "like that of a server",
        ),
    ] {
        let report = toml(text, &Env::default()).unwrap_err();
        assert!(report.contains(expected), "{text}\n{report}");
        assert!(report.contains("bowline.toml:2:"), "{report}");
    }
}

#[test]
fn what_a_server_cannot_say_of_its_executor_is_refused_with_a_way_out() {
    for (lines, expected) in [
        (
            "command = \"a\"\nvia = \"executor:x\"",
            "keep `command` in the config of the executor",
        ),
        ("command = \"a\"\nserver = \"b\"", "`server` and no `via`"),
        (
            "url = \"https://h\"\nserver = \"b\"\nvia = \"executor:x\"",
            "both `url` and `server`",
        ),
        (
            "via = \"executor:x\"\nargs = [\"b\"]",
            "started by an executor, so `args`",
        ),
        (
            "via = \"executor:x\"\nheaders = { A = \"b\" }",
            "and has no headers",
        ),
        (
            "via = \"executor:x\"\nserver = \"B\"",
            "`server` cannot be \"B\"",
        ),
        (
            "url = \"https://h\"\nheaders = { A = \"${executor:b}\" }",
            "server with `via`",
        ),
        (
            "command = \"a\"\nargs = [\"${executor:b}\"]",
            "server with `via`",
        ),
        (
            "url = \"https://h/${executor:b}\"\nvia = \"executor:x\"",
            "server with `via`",
        ),
        (
            "url = \"https://h\"\nvia = \"executor:x\"\nheaders = { A = \"${HOME}${executor:b}\" }",
            "stands alone in a header",
        ),
        (
            "url = \"https://h\"\nvia = \"executor:x\"\nheaders = { A = \"${executor:b c}\" }",
            "names no secret",
        ),
    ] {
        let text = format!("[servers.a]\n{lines}\n");
        let report = toml(&text, &Env::default()).unwrap_err();
        assert!(report.contains(expected), "{text}\n{report}");
    }
}

#[test]
fn an_executor_elsewhere_without_encryption_is_warned_of() {
    let text = "[executors.a]\nurl = \"ws://h.example:1\"\n[executors.b]\nurl = \"ws://[::1]:1\"\n";
    let config = toml(text, &Env::default()).unwrap();
    let warnings: Vec<_> = config.warnings.iter().map(|one| &one.message).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("not encrypted"), "{warnings:?}");
}
