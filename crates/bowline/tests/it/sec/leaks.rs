//! Leaks of configured secrets: in results, in arguments, over plain http.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_testkit::gateway::{Gateway, StubServer, bowline_binary, fixture_config};
use serde_json::{Value, json};

/// Needs escapes in URLs and in base64.
const SECRET: &str = "S3CRET/canary+9f8e7d\"é";

/// The encodings in which a server may return the secret.
fn secret_forms() -> Vec<String> {
    let encoded = |text: &str| STANDARD.encode(text);
    vec![
        SECRET.to_owned(),
        format!("Bearer {SECRET}"),
        encoded(SECRET),
        encoded(&format!("u:{SECRET}")),
        encoded(&format!("user:{SECRET}")),
        "S3CRET%2Fcanary%2B9f8e7d%22%C3%A9".to_owned(),
        "S3CRET%2fcanary%2b9f8e7d%22%c3%a9".to_owned(),
    ]
}

/// Whether a text contains the secret, or a significant part of an encoding.
fn contains_secret(text: &str) -> bool {
    let base64 = [0, 1, 2].map(|before| {
        let whole = STANDARD.encode(format!("{}{SECRET}", "x".repeat(before)));
        whole[4..20].to_owned()
    });
    let plain = ["canary+9f8e7d", "canary%2B9f8e7d", "canary%2b9f8e7d"].map(str::to_owned);
    plain.iter().chain(&base64).any(|part| text.contains(part))
}

fn secret_env_line() -> String {
    format!("env = {{ DB_PASSWORD = {} }}\n", json!(SECRET))
}

#[test]
fn sec_70_secrets_are_redacted_from_results_and_errors() {
    // Returns the request as an invalid response.
    let web = StubServer::start_mcp(|asked| {
        let sent = asked.header("authorization").unwrap_or_default();
        (
            500,
            json!(STANDARD.encode(format!("u:{}", &sent[7..]))).to_string(),
        )
    });
    let config = [
        fixture_config("one", &[]) + &secret_env_line(),
        // A second server returns a secret of the first.
        fixture_config("two", &[]),
        fixture_config("open", &[]) + "redact_results = false\n",
        format!(
            "[servers.web]\nurl = {}\nheaders = {{ Authorization = \"Bearer W3B/canary+9f8e7d!\" }}\n",
            json!(format!("{}/mcp", web.url))
        ),
    ];
    let gateway = Gateway::start(&config.concat());
    for server in ["one", "two", "open", "web"] {
        gateway.wait_for_state(server, "ready");
    }
    let mut session = gateway.open_session("/mcp");
    for form in secret_forms() {
        for server in ["one", "two"] {
            let echo = session.call(&format!("{server}__echo"), &json!({"message": form}));
            let text = echo["result"]["content"][0]["text"].as_str().unwrap();
            assert!(text.contains("‹env DB_PASSWORD›"), "{form}: {echo}");
            let fail = session.call(&format!("{server}__fail"), &json!({"message": form}));
            assert_eq!(fail["result"]["isError"], true, "{fail}");
            let refused = json!({"code": -32001, "message": form, "data": {"said": form}});
            let refused = session.call(&format!("{server}__rpc_error"), &refused);
            assert_eq!(refused["error"]["code"], -32001, "{refused}");
            for answer in [echo, fail, refused] {
                assert!(!contains_secret(&answer.to_string()), "{form}: {answer}");
            }
        }
        // With redaction off, every byte of the server passes.
        let echo = session.call("open__echo", &json!({"message": form}));
        assert_eq!(echo["result"]["content"][0]["text"], form, "{echo}");
    }
    let failed = session.call("web__look", &json!({})).to_string();
    assert!(
        failed.contains("500") && !contains_secret(&failed),
        "{failed}"
    );
    assert!(
        !failed.contains(&STANDARD.encode("u:W3B/canary+9f8e7d!")[4..16]),
        "{failed}"
    );
    // A text without a secret keeps its bytes; the owner's own token is redacted too.
    let plain = session.call("one__echo", &json!({"message": "S3CRET canary"}));
    assert_eq!(plain["result"]["content"][0]["text"], "S3CRET canary");
    let token = session.call("two__echo", &json!({"message": gateway.token}));
    assert_eq!(token["result"]["content"][0]["text"], "‹owner token›");
}

/// Runs `check` on a file, and returns the success and output.
fn run_check(config: &str) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bowline.toml");
    std::fs::write(&file, config).unwrap();
    std::fs::write(directory.path().join("key"), "hunter22222").unwrap();
    let checked = std::process::Command::new(bowline_binary())
        .arg("--state")
        .arg(directory.path().join("state"))
        .arg("--config")
        .arg(&file)
        .arg("check")
        .output()
        .unwrap();
    let text = [checked.stdout, checked.stderr].concat();
    (checked.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn sec_71_secrets_in_argv_or_urls_are_refused() {
    let child = |more: &str| format!("[servers.a]\ncommand = \"true\"\n{more}\n");
    let secret = "[secrets.db]\nfile = \"key\"\n";
    for args in ["\"--key\", \"${secret:db}\"", "\"--key=${file:key}\""] {
        let (is_good, said) = run_check(&format!("{secret}{}", child(&format!("args = [{args}]"))));
        assert!(!is_good && said.contains("argv_secrets"), "{said}");
        assert!(
            said.contains("env = ") && !said.contains("hunter2"),
            "{said}"
        );
        let allowed = format!("args = [{args}]\nargv_secrets = \"allow\"");
        let (is_good, said) = run_check(&format!("{secret}{}", child(&allowed)));
        assert!(is_good, "{said}");
    }
    let (is_good, said) = run_check(&format!(
        "{secret}{}",
        child("env = { K = \"${secret:db}\" }")
    ));
    assert!(is_good, "{said}");
    let at = |url: &str| run_check(&format!("{secret}[servers.a]\nurl = \"{url}\"\n"));
    for url in [
        "http://remote.example/mcp?key=${secret:db}",
        "http://remote.example/${file:key}/mcp",
        "http://10.0.0.1/mcp?api_key=literal",
    ] {
        let (is_good, said) = at(url);
        assert!(!is_good && said.contains("not https"), "{url}: {said}");
    }
    for url in [
        "https://remote.example/mcp?key=${secret:db}",
        "http://127.0.0.1:9/mcp?key=${secret:db}",
    ] {
        let (is_good, said) = at(url);
        assert!(is_good && !said.contains("plain http"), "{url}: {said}");
    }
    let (is_good, said) = at("http://remote.example/mcp");
    assert!(is_good && said.contains("plain http"), "{said}");
}

#[test]
fn sec_71_allowed_argv_secrets_show_in_status() {
    let gateway = Gateway::start(&(fixture_config("one", &[]) + "argv_secrets = \"allow\"\n"));
    let status = gateway.wait_for_state("one", "ready");
    assert_eq!(
        (&status["argv_secrets"], &status["redact_results"]),
        (&json!(true), &json!(true))
    );
    let shown = gateway.run_cli(&["status", "one"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("argv_secrets"), "{shown}");
}

#[test]
fn sec_72_tokens_never_use_plain_http() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    let private = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
    std::fs::set_permissions(&token, private).unwrap();
    let run = |args: &[&str]| {
        let ran = std::process::Command::new(bowline_binary())
            .args(["--json", "--state"])
            .arg(directory.path().join("state"))
            .arg("--token-file")
            .arg(&token)
            .args(args)
            .output()
            .unwrap();
        let said: Value = serde_json::from_slice(&ran.stderr).unwrap_or_default();
        (ran.status.code(), said["error"]["code"].clone(), said)
    };
    // A documentation address: unreachable, and nothing may be sent.
    let remote = "http://192.0.2.1:7331";
    for args in [
        &["worker", "join", remote][..],
        &["worker", "join", "ws://192.0.2.1:7331"],
        &["executor", "join", remote, "--name", "office"],
        &["--url", remote, "status"],
        &["--url", remote, "token", "ls"],
        &["--url", remote, "stdio"],
    ] {
        let (exit, code, said) = run(args);
        assert_eq!(
            (exit, code),
            (Some(2), json!("insecure")),
            "{args:?}: {said}"
        );
        let hint = said["error"]["hint"].as_str().unwrap();
        assert!(
            hint.contains("--insecure") && hint.contains("ssh -L"),
            "{said}"
        );
    }
    // With `--insecure` it connects: to a closed port of this machine.
    let (exit, code, said) = run(&["--insecure", "--url", "http://0.0.0.0:1", "status"]);
    assert_eq!((exit, code), (Some(4), json!("unreachable")), "{said}");
}
