//! An executor contacts only allowed addresses, for every request of its gateway.

use bowline_testkit::gateway::{
    Executor, Gateway, StubServer, executor_command, write_private_file,
};
use bowline_testkit::wait_until;
use serde_json::json;

use crate::sec::egress_setup::ForbiddenListener;

/// Spellings of an address of this machine.
const LOOPBACK_SPELLINGS: [&str; 16] = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0177.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "0",
    "localhost",
    "localhost.",
    "127.0.0.1.",
    "[::1]",
    "[::]",
    "[::ffff:7f00:1]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
];

/// Config lines for a server at each of the given hosts.
fn server_lines(hosts: &[&str], port: u16) -> String {
    let each = hosts.iter().enumerate().map(|(at, host)| {
        let url = json!(format!("http://{host}:{port}/mcp"));
        format!("[servers.s{at}]\nurl = {url}\nvia = \"executor:office\"\n")
    });
    each.collect()
}

/// Waits until the executor was contacted for this server; returns the server's error.
fn wait_for_start_error(gateway: &Gateway, server: &str) -> String {
    let said = || gateway.server_status(server)["last_error"]["message"].to_string();
    wait_until(&format!("{server} is known"), || {
        let said = said();
        said != "null" && !said.contains("has not joined")
    });
    said()
}

#[test]
fn sec_20_executor_rules_never_reach_special_addresses() {
    let forbidden = ForbiddenListener::new();
    let gateway = Gateway::start(&server_lines(&LOOPBACK_SPELLINGS, forbidden.port));
    let broad = ["--allow", "0.0.0.0/0:*", "--allow", "[::/0]:*"];
    let _office = Executor::join(&gateway, "office", &gateway.token, "", &broad);
    for (at, way) in LOOPBACK_SPELLINGS.iter().enumerate() {
        let said = wait_for_start_error(&gateway, &format!("s{at}"));
        assert!(
            said.contains("the destination is not allowed"),
            "{way}: {said}"
        );
    }
    forbidden.assert_untouched();
}

#[test]
fn sec_20_denial_reveals_nothing_about_target() {
    let open = ForbiddenListener::new();
    let closed = ForbiddenListener::new().port;
    let gateway = Gateway::start(&server_lines(
        &[
            "127.0.0.1",
            "10.255.255.1",
            "169.254.169.254",
            "no-such-name.invalid",
        ],
        open.port,
    ));
    // A rule at this port makes name resolution necessary.
    let rules = ["--allow", &format!("192.168.77.77:{}", open.port)];
    let _office = Executor::join(&gateway, "office", &gateway.token, "", &rules);
    let mut told: Vec<_> = (0..4)
        .map(|at| wait_for_start_error(&gateway, &format!("s{at}")))
        .collect();
    let other = Gateway::start(&server_lines(&["127.0.0.1"], closed));
    let _other = Executor::join(&other, "office", &other.token, "", &rules);
    told.push(wait_for_start_error(&other, "s0"));
    told.dedup();
    assert_eq!(told.len(), 1, "{told:?}");
    open.assert_untouched();
}

#[test]
fn sec_20_named_address_is_reached_per_server() {
    let upstream = StubServer::start_mcp(|asked| {
        let id = asked.json()["id"].clone();
        let result = json!({"content": [{"type": "text", "text": "seen"}]});
        (
            200,
            json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string(),
        )
    });
    let port: u16 = upstream.url.rsplit(':').next().unwrap().parse().unwrap();
    let hosts = ["127.0.0.1", "localhost", "[::ffff:7f00:1]", "127.0.0.1"];
    let gateway = Gateway::start(&server_lines(&hosts, port));
    // The last server may only go elsewhere, although a connection to this address is open.
    let list = |server: &str, host: &str| {
        format!("[executor.servers.{server}]\nallow = [\"{host}:{port}\"]\n")
    };
    let config = list("s0", "127.0.0.1")
        + &list("s1", "localhost")
        + &list("s2", "127.0.0.0/8")
        + &list("s3", "127.0.0.2");
    let _office = Executor::join(&gateway, "office", &gateway.token, &config, &[]);
    for server in ["s0", "s1", "s2"] {
        gateway.wait_for_state(server, "ready");
        let mut session = gateway.open_session(&format!("/servers/{server}/mcp"));
        assert_eq!(session.call_text("look", &json!({})), "seen");
    }
    let said = wait_for_start_error(&gateway, "s3");
    assert!(said.contains("the destination is not allowed"), "{said}");
}

#[test]
fn executor_alone_logs_rule_for_denial() {
    let upstream = StubServer::start_mcp(|_| (200, String::new()));
    let port: u16 = upstream.url.rsplit(':').next().unwrap().parse().unwrap();
    let gateway = Gateway::start(&server_lines(&["[::ffff:7f00:1]"], port));
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("bowline.toml"), "").unwrap();
    let token = directory.path().join("token");
    write_private_file(&token, &gateway.token);
    let url = format!("http://{}", gateway.address);
    let args = [
        "join",
        &url,
        "--name",
        "office",
        "--token-file",
        token.to_str().unwrap(),
    ];
    let args = args.map(str::to_owned);
    let log = directory.path().join("log");
    let mut strict = executor_command(directory.path(), &args)
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let told = wait_for_start_error(&gateway, "s0");
    assert!(
        !told.contains("--allow") && !told.contains(&port.to_string()),
        "{told}"
    );
    let rule = format!("--allow 127.0.0.1:{port}");
    wait_until("it is logged", || {
        std::fs::read_to_string(&log).unwrap().contains(&rule)
    });
    strict.kill().unwrap();
    strict.wait().unwrap();
    // The suggested rule works.
    let rule: Vec<&str> = rule.split(' ').collect();
    let _office = Executor::join(&gateway, "office", &gateway.token, "", &rule);
    gateway.wait_for_state("s0", "ready");
}
