//! Tokens of principals: access, and end of access.

mod owner_token;
mod revocation;

use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config};
use serde_json::{Value, json};

/// A server, and roles with a partial view.
pub(crate) fn token_config() -> String {
    let roles = r#"
[roles.reader]
allow = ["one.echo"]
[roles.writer]
allow = ["one.*"]
deny = ["one.add"]
[principals.robot]
role = "reader"
[context.quiet]
hide = ["one.echo"]
"#;
    format!("{}{roles}", fixture_config("one", &[]))
}

pub(crate) fn start_with_roles() -> Gateway {
    let gateway = Gateway::start(&token_config());
    gateway.wait_for_state("one", "ready");
    gateway
}

fn create_refused_token(gateway: &Gateway, wanted: &Value) -> (u16, String, Value) {
    let answer = gateway.send_api("POST", "/api/v1/tokens", wanted);
    let error = answer.json()["error"].clone();
    let code = error["code"].as_str().unwrap_or_default().to_owned();
    (answer.status, code, error["suggestions"].clone())
}

#[test]
fn token_opens_only_what_role_allows() {
    let mut gateway = start_with_roles();
    let made = json!({"principal": "ann", "role": "reader"});
    let made = gateway.send_api("POST", "/api/v1/tokens", &made).json();
    assert_eq!(made["v"], 1);
    assert_eq!(made["principal"], "ann");
    assert_eq!(made["role"], "reader");
    assert!(made["expires_at_ms"].is_u64(), "{made}");
    let token = made["token"].as_str().unwrap().to_owned();
    let id = made["id"].as_str().unwrap();
    assert!(token.starts_with(&format!("bwl_{id}_")), "{made}");
    let uses = |gateway: &Gateway| {
        let mut session = gateway.open_session_as(&token, "/mcp");
        assert_eq!(session.list_tool_names(), ["one__echo"]);
        assert_eq!(
            session.call_text("one__echo", &json!({"message": "hi"})),
            "hi"
        );
        let denied = session.call("one__add", &json!({"a": 1, "b": 2}));
        assert!(denied["error"].is_object(), "{denied}");
        let mut session = gateway.open_session_as(&token, "/servers/one/mcp");
        assert_eq!(session.list_tool_names(), ["echo"]);
    };
    uses(&gateway);
    // The owner's endpoints stay closed.
    let bearer = format!("Bearer {token}");
    for path in [
        "/api/v1/status",
        "/api/v1/tokens",
        "/api/v1/sessions",
        "/metrics",
    ] {
        let answer =
            HttpConnection::connect(gateway.address).get(path, &[("Authorization", &bearer)]);
        assert_eq!(answer.status, 403, "{path}");
    }
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    uses(&gateway);
    let state = std::fs::read_to_string(gateway.state_dir().join("tokens.json")).unwrap();
    let secret = token.rsplit_once(&format!("{id}_")).unwrap().1;
    assert!(!state.contains(secret));
    let listed = gateway.send_api("GET", "/api/v1/tokens", &json!({})).text();
    assert!(
        listed.contains(id) && listed.contains("\"ann\""),
        "{listed}"
    );
    assert!(
        !listed.contains(secret) && !listed.contains("sha256"),
        "{listed}"
    );
}

/// A wrong token is refused even where no token is needed.
#[test]
fn wrong_token_is_refused_without_authentication() {
    let gateway = Gateway::start_with_args(&token_config(), &["--insecure-no-auth"]);
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "reader"}));
    let last = if token.ends_with('A') { 'B' } else { 'A' };
    let wrong = format!("{}{last}", &token[..token.len() - 1]);
    for bearer in [&wrong, "bwl_0123456789abcdef_x", "bwl_", "Bearer"] {
        let header = format!("Bearer {bearer}");
        let headers = [("Authorization", &header[..])];
        for path in [
            "/mcp",
            "/sse",
            "/servers/one/mcp",
            "/livez",
            "/api/v1/status",
        ] {
            let answer = HttpConnection::connect(gateway.address).get(path, &headers);
            assert_eq!(answer.status, 401, "{bearer} {path}");
            let challenge = answer.header("www-authenticate");
            assert_eq!(challenge, Some("Bearer realm=\"bowline\""));
        }
    }
}

#[test]
fn invalid_token_options_are_refused_with_suggestion() {
    let gateway = start_with_roles();
    for (wanted, code, near) in [
        (
            json!({"principal": "ann", "role": "raeder"}),
            "role_not_found",
            json!(["reader"]),
        ),
        (
            json!({"principal": "ann"}),
            "role_required",
            json!(["reader", "writer"]),
        ),
        (
            json!({"principal": "robot", "role": "writer"}),
            "role_assigned",
            json!(["reader"]),
        ),
        (
            json!({"principal": "ann", "role": "reader", "contexts": ["quite"]}),
            "context_not_found",
            json!(["quiet"]),
        ),
        (
            json!({"principal": "owner", "role": "reader"}),
            "invalid_principal",
            Value::Null,
        ),
        (
            json!({"principal": "a/b", "role": "reader"}),
            "invalid_principal",
            Value::Null,
        ),
        (
            json!({"principal": "ann", "role": "reader", "expires_s": 0}),
            "invalid_expiry",
            Value::Null,
        ),
    ] {
        assert_eq!(
            create_refused_token(&gateway, &wanted),
            (422, code.to_owned(), near),
            "{wanted}"
        );
    }
    assert_eq!(
        create_refused_token(&gateway, &json!({"principal": "ann", "rolle": "x"})).0,
        400
    );
    assert_eq!(gateway.get_api("/api/v1/tokens")["tokens"], json!([]));
    // The config assigns the role of this principal.
    let (_, token) = gateway.create_token(&json!({"principal": "robot"}));
    assert_eq!(
        gateway.open_session_as(&token, "/mcp").list_tool_names(),
        ["one__echo"]
    );
}

#[test]
fn default_allow_needs_no_role_definition() {
    let config = format!("[policy]\ndefault = \"allow\"\n{}", token_config());
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    for wanted in [
        json!({"principal": "ann"}),
        json!({"principal": "bob", "role": "guest"}),
    ] {
        let (_, token) = gateway.create_token(&wanted);
        let mut session = gateway.open_session_as(&token, "/mcp");
        assert!(session.list_tool_names().len() > 1, "{wanted}");
    }
    let (_, token) = gateway.create_token(&json!({"principal": "cid", "role": "reader"}));
    assert_eq!(
        gateway.open_session_as(&token, "/mcp").list_tool_names(),
        ["one__echo"]
    );
}

#[test]
fn token_is_narrowed_by_its_contexts() {
    let gateway = start_with_roles();
    let wanted = json!({"principal": "ann", "role": "writer", "contexts": ["quiet"]});
    let (_, token) = gateway.create_token(&wanted);
    let mut session = gateway.open_session_as(&token, "/mcp");
    let tools = session.list_tool_names();
    assert!(tools.len() > 1, "{tools:?}");
    assert!(!tools.contains(&"one__echo".to_owned()), "{tools:?}");
    assert!(!tools.contains(&"one__add".to_owned()), "{tools:?}");
    let denied = session.call("one__echo", &json!({"message": "hi"}));
    assert!(denied["error"].is_object(), "{denied}");
}

#[test]
fn token_commands_create_list_and_revoke() {
    let gateway = start_with_roles();
    let create = ["token", "create", "--principal", "ann", "--role", "reader"];
    let made =
        gateway.run_cli(&[&create[..], &["--expires", "30d", "--context", "quiet"]].concat());
    let (shown, said) = (utf8_text(&made.stdout), utf8_text(&made.stderr));
    assert!(made.status.success(), "{said}");
    let token = shown.trim_end();
    assert!(
        token.starts_with("bwl_") && !token.contains('\n'),
        "{shown}"
    );
    assert!(!said.contains(token), "it is shown once: {said}");
    for part in [
        "not shown again",
        "hash only",
        "expires    in 30 d",
        "token revoke",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let listed = utf8_text(&gateway.run_cli(&["token", "ls"]).stdout);
    assert!(
        listed.contains("ann") && listed.contains("quiet"),
        "{listed}"
    );
    let json = gateway.run_cli(&[&create[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["v"], 1);
    assert!(
        json["token"].as_str().unwrap().starts_with("bwl_"),
        "{json}"
    );
    let typo = gateway.run_cli(&["token", "create", "--principal", "ann", "--role", "raeder"]);
    assert_eq!(typo.status.code(), Some(2));
    assert!(
        utf8_text(&typo.stderr).contains("did you mean reader?"),
        "{typo:?}"
    );
    let unknown = gateway.run_cli(&["token", "revoke", "anna"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        utf8_text(&unknown.stderr).contains("did you mean ann?"),
        "{unknown:?}"
    );
    let revoked = gateway.run_cli(&["token", "revoke", "ann"]);
    assert!(revoked.status.success());
    assert_eq!(utf8_text(&revoked.stdout).lines().count(), 2, "{revoked:?}");
    let bearer = format!("Bearer {token}");
    let answer =
        HttpConnection::connect(gateway.address).get("/mcp", &[("Authorization", &bearer)]);
    assert_eq!(answer.status, 401);
}

#[test]
fn damaged_token_store_blocks_start() {
    let mut gateway = start_with_roles();
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "reader"}));
    assert!(gateway.stop());
    for (file, fix) in [
        ("tokens.json", "make every token anew"),
        ("contexts.json", "every client opens its session anew"),
    ] {
        let path = gateway.state_dir().join(file);
        let before = std::fs::read(&path).ok();
        std::fs::write(&path, "{\"v\":1,").unwrap();
        make_private(&path);
        let up = gateway.run_cli(&[
            "up",
            "--listen",
            "127.0.0.1:0",
            "--config",
            gateway.dir.path().join("bowline.toml").to_str().unwrap(),
        ]);
        let said = utf8_text(&up.stderr);
        assert!(!up.status.success(), "{said}");
        assert!(said.contains(file) && said.contains(fix), "{said}");
        match before {
            Some(before) => std::fs::write(&path, before).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    gateway.restart();
    gateway.wait_for_state("one", "ready");
    assert_eq!(
        gateway.open_session_as(&token, "/mcp").list_tool_names(),
        ["one__echo"]
    );
}

pub(crate) fn make_private(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn utf8_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
