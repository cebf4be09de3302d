//! An executor goes only where it may, whatever its gateway asks for.

use serde_json::json;

use crate::harness::Gateway;
use crate::harness::eventually;
use crate::harness::executor::{self, Executor};
use crate::harness::listener::Listener;
use crate::harness::worker::write_private;
use crate::sec::roads::Forbidden;

/// Ways to write an address of this machine.
const WAYS: [&str; 16] = [
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

/// Lines of the config for a server at each of these.
fn servers(hosts: &[&str], port: u16) -> String {
    let each = hosts.iter().enumerate().map(|(at, host)| {
        let url = json!(format!("http://{host}:{port}/mcp"));
        format!("[servers.s{at}]\nurl = {url}\nvia = \"executor:office\"\n")
    });
    each.collect()
}

/// Waits until the executor was asked for this server; returns what is said of it then.
fn said_of(gateway: &Gateway, server: &str) -> String {
    let said = || gateway.status(server)["last_error"]["message"].to_string();
    eventually(&format!("{server} is known"), || {
        let said = said();
        said != "null" && !said.contains("has not joined")
    });
    said()
}

#[test]
fn sec_20_an_executor_reaches_no_special_address_by_a_rule_that_does_not_mean_it() {
    let forbidden = Forbidden::new();
    let gateway = Gateway::up(&servers(&WAYS, forbidden.port));
    let broad = ["--allow", "0.0.0.0/0:*", "--allow", "[::/0]:*"];
    let _office = Executor::join(&gateway, ("office", &gateway.token), "", &broad);
    for (at, way) in WAYS.iter().enumerate() {
        let said = said_of(&gateway, &format!("s{at}"));
        assert!(
            said.contains("the destination is not allowed"),
            "{way}: {said}"
        );
    }
    forbidden.is_untouched();
}

#[test]
fn sec_20_what_is_denied_tells_nothing_of_who_is_there() {
    let open = Forbidden::new();
    let closed = Forbidden::new().port;
    let gateway = Gateway::up(&servers(
        &[
            "127.0.0.1",
            "10.255.255.1",
            "169.254.169.254",
            "no-such-name.invalid",
        ],
        open.port,
    ));
    // A rule at this port makes it necessary to look names up.
    let rules = ["--allow", &format!("192.168.77.77:{}", open.port)];
    let _office = Executor::join(&gateway, ("office", &gateway.token), "", &rules);
    let mut told: Vec<_> = (0..4)
        .map(|at| said_of(&gateway, &format!("s{at}")))
        .collect();
    let other = Gateway::up(&servers(&["127.0.0.1"], closed));
    let _other = Executor::join(&other, ("office", &other.token), "", &rules);
    told.push(said_of(&other, "s0"));
    told.dedup();
    assert_eq!(told.len(), 1, "{told:?}");
    open.is_untouched();
}

#[test]
fn sec_20_what_is_named_is_reached_and_another_server_may_be_kept_from_it() {
    let upstream = Listener::mcp(|asked| {
        let id = asked.json()["id"].clone();
        let result = json!({"content": [{"type": "text", "text": "seen"}]});
        (
            200,
            json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string(),
        )
    });
    let port: u16 = upstream.url.rsplit(':').next().unwrap().parse().unwrap();
    let hosts = ["127.0.0.1", "localhost", "[::ffff:7f00:1]", "127.0.0.1"];
    let gateway = Gateway::up(&servers(&hosts, port));
    // The last of them may go elsewhere only, though a connection to there stands.
    let list = |server: &str, host: &str| {
        format!("[executor.servers.{server}]\nallow = [\"{host}:{port}\"]\n")
    };
    let config = list("s0", "127.0.0.1")
        + &list("s1", "localhost")
        + &list("s2", "127.0.0.0/8")
        + &list("s3", "127.0.0.2");
    let _office = Executor::join(&gateway, ("office", &gateway.token), &config, &[]);
    for server in ["s0", "s1", "s2"] {
        gateway.wait_for(server, "ready");
        let mut session = gateway.session(&format!("/servers/{server}/mcp"));
        assert_eq!(session.text("look", &json!({})), "seen");
    }
    let said = said_of(&gateway, "s3");
    assert!(said.contains("the destination is not allowed"), "{said}");
}

#[test]
fn a_denial_is_told_at_the_executor_with_the_rule_that_would_allow_it_and_only_there() {
    let upstream = Listener::mcp(|_| (200, String::new()));
    let port: u16 = upstream.url.rsplit(':').next().unwrap().parse().unwrap();
    let gateway = Gateway::up(&servers(&["[::ffff:7f00:1]"], port));
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("bowline.toml"), "").unwrap();
    let token = directory.path().join("token");
    write_private(&token, &gateway.token);
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
    let mut strict = executor::command(directory.path(), &args)
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let told = said_of(&gateway, "s0");
    assert!(
        !told.contains("--allow") && !told.contains(&port.to_string()),
        "{told}"
    );
    let rule = format!("--allow 127.0.0.1:{port}");
    eventually("it is logged", || {
        std::fs::read_to_string(&log).unwrap().contains(&rule)
    });
    strict.kill().unwrap();
    strict.wait().unwrap();
    // What was said is what helps.
    let rule: Vec<&str> = rule.split(' ').collect();
    let _office = Executor::join(&gateway, ("office", &gateway.token), "", &rule);
    gateway.wait_for("s0", "ready");
}
