//! Credentials of principals: what they open, and what ends with them.

mod owner;
mod revoked;

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, fixture};

/// One server, and roles that see less than all of it.
pub(crate) fn config() -> String {
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
    format!("{}{roles}", fixture("one", &[]))
}

pub(crate) fn up() -> Gateway {
    let gateway = Gateway::up(&config());
    gateway.wait_for("one", "ready");
    gateway
}

fn refused(gateway: &Gateway, wanted: &Value) -> (u16, String, Value) {
    let answer = gateway.ask_api("POST", "/api/v1/tokens", wanted);
    let error = answer.json()["error"].clone();
    let code = error["code"].as_str().unwrap_or_default().to_owned();
    (answer.status, code, error["suggestions"].clone())
}

#[test]
fn a_token_opens_what_its_role_allows_and_nothing_else() {
    let mut gateway = up();
    let made = json!({"principal": "ann", "role": "reader"});
    let made = gateway.ask_api("POST", "/api/v1/tokens", &made).json();
    assert_eq!(made["v"], 1);
    assert_eq!(made["principal"], "ann");
    assert_eq!(made["role"], "reader");
    assert!(made["expires_at_ms"].is_u64(), "{made}");
    let token = made["token"].as_str().unwrap().to_owned();
    let id = made["id"].as_str().unwrap();
    assert!(token.starts_with(&format!("bwl_{id}_")), "{made}");
    let uses = |gateway: &Gateway| {
        let mut session = gateway.session_as(&token, "/mcp");
        assert_eq!(session.tools(), ["one__echo"]);
        assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
        let denied = session.call("one__add", &json!({"a": 1, "b": 2}));
        assert!(denied["error"].is_object(), "{denied}");
        let mut session = gateway.session_as(&token, "/servers/one/mcp");
        assert_eq!(session.tools(), ["echo"]);
    };
    uses(&gateway);
    // The owner's places stay the owner's.
    let bearer = format!("Bearer {token}");
    for path in [
        "/api/v1/status",
        "/api/v1/tokens",
        "/api/v1/sessions",
        "/metrics",
    ] {
        let answer = Http::connect(gateway.address).get(path, &[("Authorization", &bearer)]);
        assert_eq!(answer.status, 403, "{path}");
    }
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    uses(&gateway);
    let state = std::fs::read_to_string(gateway.state().join("tokens.json")).unwrap();
    let secret = token.rsplit_once(&format!("{id}_")).unwrap().1;
    assert!(!state.contains(secret));
    let listed = gateway.ask_api("GET", "/api/v1/tokens", &json!({})).text();
    assert!(
        listed.contains(id) && listed.contains("\"ann\""),
        "{listed}"
    );
    assert!(
        !listed.contains(secret) && !listed.contains("sha256"),
        "{listed}"
    );
}

#[test]
fn a_wrong_token_is_nobody_even_where_no_token_is_needed() {
    let gateway = Gateway::up_with(&config(), &["--insecure-no-auth"]);
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "reader"}));
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
            let answer = Http::connect(gateway.address).get(path, &headers);
            assert_eq!(answer.status, 401, "{bearer} {path}");
            let challenge = answer.header("www-authenticate");
            assert_eq!(challenge, Some("Bearer realm=\"bowline\""));
        }
    }
}

#[test]
fn a_token_that_makes_no_sense_is_refused_with_what_was_meant() {
    let gateway = up();
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
            refused(&gateway, &wanted),
            (422, code.to_owned(), near),
            "{wanted}"
        );
    }
    assert_eq!(
        refused(&gateway, &json!({"principal": "ann", "rolle": "x"})).0,
        400
    );
    assert_eq!(gateway.api("/api/v1/tokens")["tokens"], json!([]));
    // The config gives this one its role.
    let (_, token) = gateway.token_of(&json!({"principal": "robot"}));
    assert_eq!(gateway.session_as(&token, "/mcp").tools(), ["one__echo"]);
}

#[test]
fn where_the_default_is_to_allow_a_role_need_not_be_defined() {
    let config = format!("[policy]\ndefault = \"allow\"\n{}", config());
    let gateway = Gateway::up(&config);
    gateway.wait_for("one", "ready");
    for wanted in [
        json!({"principal": "ann"}),
        json!({"principal": "bob", "role": "guest"}),
    ] {
        let (_, token) = gateway.token_of(&wanted);
        let mut session = gateway.session_as(&token, "/mcp");
        assert!(session.tools().len() > 1, "{wanted}");
    }
    let (_, token) = gateway.token_of(&json!({"principal": "cid", "role": "reader"}));
    assert_eq!(gateway.session_as(&token, "/mcp").tools(), ["one__echo"]);
}

#[test]
fn a_token_is_narrowed_by_its_contexts() {
    let gateway = up();
    let wanted = json!({"principal": "ann", "role": "writer", "contexts": ["quiet"]});
    let (_, token) = gateway.token_of(&wanted);
    let mut session = gateway.session_as(&token, "/mcp");
    let tools = session.tools();
    assert!(tools.len() > 1, "{tools:?}");
    assert!(!tools.contains(&"one__echo".to_owned()), "{tools:?}");
    assert!(!tools.contains(&"one__add".to_owned()), "{tools:?}");
    let denied = session.call("one__echo", &json!({"message": "hi"}));
    assert!(denied["error"].is_object(), "{denied}");
}

#[test]
fn tokens_are_made_listed_and_revoked_on_the_command_line() {
    let gateway = up();
    let create = ["token", "create", "--principal", "ann", "--role", "reader"];
    let made = gateway.cli(&[&create[..], &["--expires", "30d", "--context", "quiet"]].concat());
    let (shown, said) = (utf8(&made.stdout), utf8(&made.stderr));
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
    let listed = utf8(&gateway.cli(&["token", "ls"]).stdout);
    assert!(
        listed.contains("ann") && listed.contains("quiet"),
        "{listed}"
    );
    let json = gateway.cli(&[&create[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["v"], 1);
    assert!(
        json["token"].as_str().unwrap().starts_with("bwl_"),
        "{json}"
    );
    let typo = gateway.cli(&["token", "create", "--principal", "ann", "--role", "raeder"]);
    assert_eq!(typo.status.code(), Some(2));
    assert!(
        utf8(&typo.stderr).contains("did you mean reader?"),
        "{typo:?}"
    );
    let unknown = gateway.cli(&["token", "revoke", "anna"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        utf8(&unknown.stderr).contains("did you mean ann?"),
        "{unknown:?}"
    );
    let revoked = gateway.cli(&["token", "revoke", "ann"]);
    assert!(revoked.status.success());
    assert_eq!(utf8(&revoked.stdout).lines().count(), 2, "{revoked:?}");
    let bearer = format!("Bearer {token}");
    let answer = Http::connect(gateway.address).get("/mcp", &[("Authorization", &bearer)]);
    assert_eq!(answer.status, 401);
}

#[test]
fn a_gateway_that_cannot_tell_who_has_a_token_does_not_start() {
    let mut gateway = up();
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "reader"}));
    assert!(gateway.stop());
    for (file, fix) in [
        ("tokens.json", "make every token anew"),
        ("contexts.json", "every client opens its session anew"),
    ] {
        let path = gateway.state().join(file);
        let before = std::fs::read(&path).ok();
        std::fs::write(&path, "{\"v\":1,").unwrap();
        set_private(&path);
        let up = gateway.cli(&[
            "up",
            "--listen",
            "127.0.0.1:0",
            "--config",
            gateway.dir.path().join("bowline.toml").to_str().unwrap(),
        ]);
        let said = utf8(&up.stderr);
        assert!(!up.status.success(), "{said}");
        assert!(said.contains(file) && said.contains(fix), "{said}");
        match before {
            Some(before) => std::fs::write(&path, before).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    gateway.restart();
    gateway.wait_for("one", "ready");
    assert_eq!(gateway.session_as(&token, "/mcp").tools(), ["one__echo"]);
}

pub(crate) fn set_private(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
