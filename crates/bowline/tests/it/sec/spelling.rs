//! Case variants of members, against a server with case-insensitive names like Go programs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use bowline_testkit::gateway::{
    Gateway, HttpConnection, MODERN, Response, Session, fixture_config, server_config,
};
use bowline_testkit::wait_until;
use serde_json::json;

use crate::peers::PeerManifest;

/// Minimum number of spellings tried with each method.
const VARIANTS_MIN: usize = 60;

const ROLE: &str = r#"
[roles.reader]
allow = ["go.read_file", "prompt:go.hello", "resource:go.note:///open"]
when = [{ on = "go.read_file", if = "args.path.startsWith('/srv/')" }]
"#;

/// The members under test, and the values that an attacker would smuggle in.
const MEMBERS: [(&str, &str); 13] = [
    ("name", r#""delete_all""#),
    ("uri", r#""note:///secret""#),
    ("arguments", r#"{"path":"/etc/shadow"}"#),
    ("ref", r#"{"type":"ref/prompt","name":"admin"}"#),
    ("argument", r#"{"name":"x","value":"y"}"#),
    ("level", r#""debug""#),
    ("taskId", r#""t2""#),
    ("cursor", r#""c""#),
    ("_meta", r#"{"dev.bowline/idempotencyKey":"k"}"#),
    ("task", "{}"),
    ("requestState", r#""s""#),
    ("inputResponses", "{}"),
    ("context", "{}"),
];

/// The methods of an era with the members of plain parameters.
type MethodTable = [(&'static str, &'static str); 6];

const TOOL: &str = r#""name":"read_file","arguments":{"path":"/srv/x"}"#;
const COMPLETE: &str =
    r#""ref":{"type":"ref/prompt","name":"hello"},"argument":{"name":"a","value":"b"}"#;

const LEGACY_METHODS: MethodTable = [
    ("tools/call", TOOL),
    ("prompts/get", r#""name":"hello""#),
    ("resources/read", r#""uri":"note:///open""#),
    ("resources/subscribe", r#""uri":"note:///open""#),
    ("completion/complete", COMPLETE),
    ("logging/setLevel", r#""level":"error""#),
];

const MODERN_METHODS: MethodTable = [
    ("tools/call", TOOL),
    ("prompts/get", r#""name":"hello""#),
    ("resources/read", r#""uri":"note:///open""#),
    ("completion/complete", COMPLETE),
    ("tasks/get", r#""taskId":"t""#),
    (
        "subscriptions/listen",
        r#""notifications":{"resourceSubscriptions":["note:///open"]}"#,
    ),
];

/// The server's interpretation of a plain request.
const MEANINGS: [&str; 6] = [
    "tools/call\tread_file /srv/x ",
    "prompts/get\thello",
    "resources/read\tnote:///open",
    "resources/subscribe\tnote:///open",
    "completion/complete\tref/prompt hello a=b",
    "logging/setLevel\terror",
];

fn read_lines(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Spellings of a name with equal meaning in Go.
fn case_variants(name: &str) -> BTreeSet<String> {
    let first = name.find(|c: char| c.is_ascii_alphabetic()).unwrap();
    let (head, tail) = name.split_at(first);
    let (letter, rest) = tail.split_at(1);
    let capital = letter.to_ascii_uppercase();
    let mut all = BTreeSet::from([
        format!("{head}{capital}{rest}"),
        format!("{head}\\u{:04x}{rest}", u32::from(capital.as_bytes()[0])),
        name.to_ascii_uppercase(),
        name.to_ascii_lowercase(),
        format!(
            "{}{}",
            &name[..name.len() - 1],
            name[name.len() - 1..].to_ascii_uppercase()
        ),
    ]);
    for (plain, odd) in [('s', "\u{17f}"), ('k', "\u{212a}")] {
        all.insert(name.replacen(plain, odd, 1));
        let escape = format!("\\u{:04X}", u32::from(odd.chars().next().unwrap()));
        all.insert(name.replacen(plain, &escape, 1));
    }
    all.remove(name);
    all
}

/// A message in three parts, each with room for one extra member.
#[derive(Clone, Debug, Default)]
struct OddMessage {
    envelope: String,
    before: String,
    after: String,
    meta: String,
}

impl OddMessage {
    fn all_variants() -> Vec<Self> {
        let mut all = Vec::new();
        for (name, value) in [("method", r#""ping""#), ("params", "{}"), ("id", "7")] {
            all.extend(case_variants(name).iter().map(|name| Self {
                envelope: format!(r#","{name}":{value}"#),
                ..Self::default()
            }));
        }
        for (name, value) in MEMBERS {
            for name in case_variants(name) {
                all.push(Self {
                    before: format!(r#""{name}":{value},"#),
                    ..Self::default()
                });
                all.push(Self {
                    after: format!(r#","{name}":{value}"#),
                    ..Self::default()
                });
            }
        }
        for name in ["progressToken", "dev.bowline/idempotencyKey", "traceparent"] {
            all.extend(case_variants(name).iter().map(|name| Self {
                meta: format!(r#","{name}":"k""#),
                ..Self::default()
            }));
        }
        all
    }

    fn to_message(&self, id: u64, method: &str, params: &str, meta: &str) -> String {
        let Self {
            envelope,
            before,
            after,
            meta: more,
        } = self;
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{before}{params},"_meta":{{{meta}{more}}}{after}}}{envelope}}}"#
        )
    }

    fn expected_code(&self) -> i64 {
        match self.envelope.is_empty() {
            true => -32_602,
            false => -32_600,
        }
    }
}

/// Sends a modern message.
fn send_modern(gateway: &Gateway, token: &str, method: &str, body: &str) -> Response {
    let bearer = format!("Bearer {token}");
    let mut headers = vec![
        ("Authorization", bearer.as_str()),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", method),
    ];
    let name = match method {
        "tools/call" => Some("read_file"),
        "prompts/get" => Some("hello"),
        "resources/read" => Some("note:///open"),
        "tasks/get" => Some("t"),
        _ => None,
    };
    headers.extend(name.map(|name| ("Mcp-Name", name)));
    let mut http = HttpConnection::connect(gateway.address);
    http.post("/servers/go/mcp", &headers, body.as_bytes())
}

const MODERN_META: &str = concat!(
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientCapabilities":{},"#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"it","version":"1"}"#,
);

/// Tries every spelling with every method of both eras, and returns the number of refusals.
fn try_all(gateway: &Gateway, token: &str, session: &mut Session) -> BTreeMap<String, usize> {
    let mut tried = BTreeMap::new();
    for odd in OddMessage::all_variants() {
        for (method, params) in LEGACY_METHODS {
            let body = odd.to_message(1, method, params, r#""progressToken":"p""#);
            let answer = session.post_raw(body.as_bytes());
            assert_eq!(
                answer.json()["error"]["code"],
                odd.expected_code(),
                "{body}"
            );
            *tried.entry(format!("legacy {method}")).or_default() += 1;
        }
        for (method, params) in MODERN_METHODS {
            let body = odd.to_message(1, method, params, MODERN_META);
            let answer = send_modern(gateway, token, method, &body);
            assert_eq!(
                answer.json()["error"]["code"],
                odd.expected_code(),
                "{body}"
            );
            assert_eq!(answer.status, 400, "{body}");
            *tried.entry(format!("modern {method}")).or_default() += 1;
        }
    }
    tried
}

#[test]
fn sec_62_go_server_sees_same_members() {
    let test = "sec_62_go_server_sees_same_members";
    let Some(peers) = PeerManifest::load_without_servers(test, &["/servers/go"]) else {
        return;
    };
    let program = peers.peer_path("/servers/go");
    let dir = tempfile::TempDir::new().unwrap();
    let log = dir.path().join("log");
    let config = server_config("go", program, &[log.to_str().unwrap()]);
    let gateway = Gateway::start(&format!("{ROLE}{config}"));
    gateway.wait_for_state("go", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "reader"}));
    let mut session = gateway.open_session_as(&token, "/servers/go/mcp");

    let tried = try_all(&gateway, &token, &mut session);
    assert_eq!(tried.len(), 12);
    for (method, count) in &tried {
        assert!(*count >= VARIANTS_MIN, "{method}: {count}");
        eprintln!("{method}: {count} spellings, none reached the server");
    }
    assert_condition_arguments(&mut session);
    assert_eq!(read_lines(&log), Vec::<String>::new());

    // Plain messages work, in both eras.
    let plain = OddMessage::default();
    for (method, params) in LEGACY_METHODS {
        let body = plain.to_message(2, method, params, r#""progressToken":"p""#);
        let answer = session.post_raw(body.as_bytes()).json();
        assert!(answer["result"].is_object(), "{body}: {answer}");
    }
    for (method, params) in &MODERN_METHODS[..4] {
        let body = plain.to_message(2, method, params, MODERN_META);
        let answer = send_modern(&gateway, &token, method, &body).json();
        assert!(answer["result"].is_object(), "{body}: {answer}");
    }
    wait_until("all plain requests have come", || {
        let seen: BTreeSet<_> = read_lines(&log).into_iter().collect();
        MEANINGS.iter().all(|meaning| seen.contains(*meaning))
    });
    for line in read_lines(&log) {
        assert!(MEANINGS.contains(&&*line), "{line:?}");
    }
    assert_server_folds_case(program, &dir.path().join("straight"));
}

/// Arguments that a condition reads.
fn assert_condition_arguments(session: &mut Session) {
    for arguments in [
        r#"{"path":"/srv/x","Path":"/etc/shadow"}"#,
        r#"{"Path":"/etc/shadow","path":"/srv/x"}"#,
        r#"{"path":"/srv/x","\u0050ath":"/etc/shadow"}"#,
        r#"{"path":"/srv/x","deep":[{"PATH":"/etc/shadow"}]}"#,
        r#"{"path":"/srv/x","deep":{"a":1,"A":2}}"#,
        r#"{"Path":"/srv/x"}"#,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{{"name":"read_file","arguments":{arguments}}}}}"#
        );
        let answer = session.post_raw(body.as_bytes()).json();
        assert_eq!(
            answer["error"]["data"]["code"], "policy_denied",
            "{body}: {answer}"
        );
    }
}

/// Shows the vulnerability of the server: without the gateway the smuggled values are executed.
fn assert_server_folds_case(program: &Path, log: &Path) {
    let mut child = Command::new(program)
        .arg(log)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for more in [
        r#""Name":"delete_all""#,
        r#""\u004eame":"delete_all""#,
        "\"argument\u{17f}\":{\"path\":\"/etc/shadow\"}",
        r#""Arguments":{"PATH":"/etc/shadow"}"#,
    ] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{TOOL},{more}}}}}"#
        );
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    let want = [
        "delete_all /srv/x ",
        "delete_all /srv/x ",
        "read_file /etc/shadow ",
    ];
    let want: Vec<_> = want
        .iter()
        .map(|meaning| format!("tools/call\t{meaning}"))
        .collect();
    assert_eq!(read_lines(log)[..3], want);
    assert_eq!(read_lines(log)[3], want[2]);
}

#[test]
fn sec_60_odd_spellings_reach_no_server() {
    let role = "[roles.r]\nallow = [\"one.*\"]\nwhen = [{ on = \"one.echo\", if = \"args.message == 'good'\" }]\n";
    let gateway = Gateway::start(&format!("{role}{}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let mut session = gateway.open_session_as(&token, "/mcp");
    for (params, code) in [
        (
            r#"{"name":"one__echo","Name":"one__add","arguments":{"message":"good"}}"#,
            -32_602,
        ),
        (
            r#"{"name":"one__echo","Arguments":{"message":"good"}}"#,
            -32_602,
        ),
        (
            r#"{"name":"one__echo","arguments":{"message":"good"},"_META":{}}"#,
            -32_602,
        ),
        (
            r#"{"name":"one__echo","arguments":{"message":"good","Message":"bad"}}"#,
            -32_001,
        ),
        (
            r#"{"name":"one__echo","arguments":{"Message":"bad"}}"#,
            -32_001,
        ),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{params}}}"#);
        let answer = session.post_raw(body.as_bytes()).json();
        let found = answer["error"]["code"]
            .as_i64()
            .unwrap_or_else(|| panic!("{body}: {answer}"));
        assert!(
            found == code || code == -32_001 && found != -32_602,
            "{body}: {answer}"
        );
        assert_eq!(answer["id"], 5, "{answer}");
    }
    for note in [
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"RequestId":1}}"#,
        r#"{"jsonrpc":"2.0","id":"x","result":{"action":"decline","Action":"accept"}}"#,
    ] {
        let answer = session.post_raw(note.as_bytes());
        assert!(answer.json()["error"]["code"].is_i64(), "{note}");
    }
    assert_eq!(gateway.server_status("one")["calls"], 0);
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "good"})),
        "good"
    );
    // Without a condition, argument names belong to the tool.
    let free = r#"{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"one__add","arguments":{"a":1,"b":2,"A":3}}}"#;
    let answer = session.post_raw(free.as_bytes()).json();
    assert_eq!(answer["result"]["content"][0]["text"], "3", "{answer}");
}
