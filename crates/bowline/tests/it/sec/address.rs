//! Host and origin: a web page in the owner's browser must not reach the gateway.

use bowline_testkit::gateway::{Gateway, bowline_binary, write_private_file};
use serde_json::Value;

use crate::sec::{
    assert_unharmed, bearer_header, exchange_bytes, initialize_message, post_message, request_head,
    response_statuses,
};

#[test]
fn sec_01_foreign_host_is_refused_in_every_spelling() {
    let gateway = Gateway::start_with_args("", &["--insecure-no-auth"]);
    let port = gateway.address.port();
    for ours in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("LocalHost:{port}"),
        format!("localhost.:{port}"),
        format!("[::1]:{port}"),
    ] {
        let answer = post_message(&gateway, "/mcp", &[("Host", &ours)], &initialize_message());
        assert_eq!(answer.status, 200, "{ours}: {}", answer.text());
    }
    let foreign = [
        format!("evil.example:{port}"),
        format!("EVIL.example:{port}"),
        format!("evil.example.:{port}"),
        format!("localhost.evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        format!("evil.example@127.0.0.1:{port}"),
        format!("0.0.0.0:{port}"),
        format!("[::]:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("2130706433:{port}"),
        format!("0x7f.1:{port}"),
        format!("127.1:{port}"),
        format!("127.0.0.1:{port}:{port}"),
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        "127.0.0.1:1".to_owned(),
        "127.0.0.1:".to_owned(),
        "[::1".to_owned(),
        String::new(),
    ];
    for path in ["/mcp", "/api/v1/status", "/livez", "/nothing"] {
        for host in &foreign {
            let answer = post_message(&gateway, path, &[("Host", host)], &initialize_message());
            assert_eq!(answer.status, 403, "{host} {path}: {}", answer.text());
            assert!(answer.text().contains("localhost"), "{}", answer.text());
            assert_eq!(answer.header("mcp-session-id"), None);
        }
    }
    assert_bad_hosts_refused(&gateway);
    assert_unharmed(&gateway);
}

/// Hosts given twice, missing, or in the request target.
fn assert_bad_hosts_refused(gateway: &Gateway) {
    let (at, bearer) = (gateway.address, bearer_header(gateway));
    let get = |target: &str, hosts: &str| {
        let head = format!(
            "GET {target} HTTP/1.1\r\n{hosts}Authorization: {bearer}\r\nConnection: close\r\n\r\n"
        );
        response_statuses(&exchange_bytes(at, head.as_bytes()))
    };
    let ours = format!("Host: {at}\r\n");
    assert_eq!(get("/livez", &ours), [200]);
    assert_eq!(get(&format!("http://{at}/livez"), &ours), [200]);
    for (target, hosts) in [
        ("/livez", format!("{ours}{ours}")),
        ("/livez", format!("{ours}Host: evil.example\r\n")),
        ("/livez", format!("Host: evil.example\r\n{ours}")),
        ("/livez", String::new()),
        ("http://evil.example/livez", ours),
        (
            "http://evil.example/livez",
            "Host: evil.example\r\n".to_owned(),
        ),
        (
            &format!("http://{at}/livez"),
            "Host: evil.example\r\n".to_owned(),
        ),
    ] {
        let status = get(target, &hosts);
        assert!(
            status == [403] || status == [400],
            "{target} {hosts:?}: {status:?}"
        );
    }
    let old = format!("GET /livez HTTP/1.0\r\nAuthorization: {bearer}\r\n\r\n");
    let reply = exchange_bytes(at, old.as_bytes());
    assert!(reply.contains(" 403 "), "{reply}");
}

#[test]
fn sec_01_only_configured_host_names_are_accepted() {
    let config = "[gateway]\nnames = [\"hub.example\"]\n";
    let gateway = Gateway::start_with_args(config, &["--insecure-no-auth"]);
    for (host, status) in [
        ("hub.example", 200),
        ("Hub.Example:443", 200),
        ("evil.example", 403),
        ("hub.example.evil.example", 403),
    ] {
        let answer = post_message(&gateway, "/mcp", &[("Host", host)], &initialize_message());
        assert_eq!(answer.status, status, "{host}: {}", answer.text());
    }
    let page = [("Host", "hub.example"), ("Origin", "https://evil.example")];
    assert_eq!(
        post_message(&gateway, "/mcp", &page, &initialize_message()).status,
        403
    );
}

#[test]
fn join_under_foreign_host_names_gateway_names() {
    let gateway = Gateway::start("");
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    write_private_file(&token, &gateway.token);
    std::fs::write(dir.path().join("bowline.toml"), "").unwrap();
    // The address leads to the gateway, but is no configured name.
    let url = format!("http://0.0.0.0:{}", gateway.address.port());
    for args in [
        &["worker", "join", &url][..],
        &["executor", "join", &url, "--name", "office"],
    ] {
        let ran = std::process::Command::new(bowline_binary())
            .args(["--json", "--insecure", "--state"])
            .arg(dir.path().join("state"))
            .arg("--config")
            .arg(dir.path().join("bowline.toml"))
            .arg("--token-file")
            .arg(&token)
            .args(args)
            .output()
            .unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        let last = stderr.lines().last().unwrap_or_default();
        let said: Value = serde_json::from_str(last).unwrap_or_default();
        let error = &said["error"];
        assert_eq!(error["code"], "host_refused", "{stderr}");
        let hint = error["hint"].as_str().unwrap();
        assert!(hint.contains("[gateway] names = [\"0.0.0.0\"]"), "{said}");
        assert!(!hint.contains("token"), "{said}");
    }
}

#[test]
fn sec_02_foreign_or_null_origin_is_refused() {
    let gateway = Gateway::start("");
    let open = Gateway::start_with_args("", &["--insecure-no-auth"]);
    for gateway in [&gateway, &open] {
        let at = gateway.address;
        let port = at.port();
        let own = format!("http://localhost:{port}");
        let answer = post_message(gateway, "/mcp", &[("Origin", &own)], &initialize_message());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("access-control-allow-origin"), None);
        for origin in [
            "null".to_owned(),
            String::new(),
            "*".to_owned(),
            "http://evil.example".to_owned(),
            format!("http://evil.example:{port}"),
            format!("https://127.0.0.1:{port}"),
            format!("http://127.0.0.1:{}", port ^ 1),
            "http://localhost".to_owned(),
            format!("http://localhost.evil.example:{port}"),
            format!("http://localhost:{port}/"),
            format!("http://localhost:{port} http://evil.example"),
            format!("http://evil.example@localhost:{port}"),
            format!("file://localhost:{port}"),
        ] {
            for path in ["/mcp", "/api/v1/status", "/livez"] {
                let answer =
                    post_message(gateway, path, &[("Origin", &origin)], &initialize_message());
                assert_eq!(answer.status, 403, "{origin} {path}: {}", answer.text());
                assert_eq!(answer.header("access-control-allow-origin"), None);
            }
        }
        let twice = [("Origin", own.as_str()), ("Origin", own.as_str())];
        assert_eq!(
            post_message(gateway, "/mcp", &twice, &initialize_message()).status,
            403
        );
        // The CORS preflight of a browser is refused.
        let asked = request_head(
            at,
            "OPTIONS",
            "/mcp",
            &[
                ("Origin", "http://evil.example"),
                ("Access-Control-Request-Method", "POST"),
            ],
        );
        assert_eq!(asked.status, 403);
        assert_unharmed(gateway);
    }
}
