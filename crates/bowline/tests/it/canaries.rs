//! Planted secrets, searched in every output for people.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use bowline_testkit::gateway::{
    Gateway, HttpConnection, ReceivedRequest, StubServer, fixture_binary,
};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::credentials;
use crate::metrics::scrape_metrics;

/// Number of planted secrets.
const CANARIES: usize = 20;

/// Secrets outside the configuration: they travel in the arguments of calls.
const IN_CALLS: usize = 4;

/// Secrets of a store, a file and a command, each before and after rotation.
const ROTATING: std::ops::Range<usize> = 100..106;

/// Length of the preview of an invalid server response.
const PREVIEW_CHARS: usize = 200;

/// A unique text. One canary needs escapes in every quoting.
fn canary_text(number: usize) -> String {
    let odd = if number == 2 { "\"q\\ " } else { "-" };
    format!("cnry{number:02}{odd}{:08x}zz", (number + 1) * 0x0123_4567)
}

/// Prints the secrets on stderr.
const PRINT_SECRETS: &str =
    r#"printf '%s\n' "env $API_KEY / $PLAIN / $ODD / $FROM_OUTSIDE args $*" >&2"#;

fn shell_server(name: &str, script: &str, args: &[&str], more: &str) -> String {
    let script = format!("{PRINT_SECRETS}\n{script}");
    let args = [&["-c", &script, "sh"], args].concat();
    format!(
        "[servers.{name}]\ncommand = \"sh\"\nargs = {}\ninherit_env = [\"FROM_OUTSIDE\"]\n{more}\n",
        json!(args)
    )
}

/// Returns the whole request as the invalid body of the response.
fn echo_request(asked: &ReceivedRequest) -> String {
    let header = |name| asked.header(name).unwrap_or_default();
    let (bearer, custom) = (header("authorization"), header("x-custom"));
    let more = header("x-more");
    format!("you sent {custom} {bearer} {more} to {}", asked.path)
}

struct PlantedSecrets {
    config: String,
    /// Refuses the handshake.
    _refusing: StubServer,
    /// Accepts the handshake and fails each call in another way.
    web: StubServer,
    collector: StubServer,
    /// Receives secrets of a store, a file and a command.
    rotating: StubServer,
    /// Directory of the secret file and of the command's output.
    directory: tempfile::TempDir,
}

/// Plants rotating secrets; the secret of the store is set later.
fn plant_rotating_secrets() -> (String, StubServer, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    std::fs::write(place("file"), canary_text(ROTATING.start + 2)).unwrap();
    std::fs::write(place("printed"), canary_text(ROTATING.start + 4)).unwrap();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let listener = StubServer::start_mcp(move |asked| {
        let status = match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3 {
            0 => 500,
            1 => 401,
            _ => 403,
        };
        (status, json!(echo_request(asked)).to_string())
    });
    // The command repeats its output on stderr and fails from the second run on.
    let script = "cat printed; cat printed >&2; test ! -e ran || exit 1; touch ran";
    let config = format!(
        "[secrets.printed]\ncommand = [\"sh\", \"-c\", {}]\n\
         [servers.kept]\nurl = {}\nheaders = {{ Authorization = \"Bearer ${{secret:stored}}\", \
         X-Custom = {}, X-More = \"${{secret:printed}}\" }}\n",
        json!(format!("cd {}; {script}", directory.path().display())),
        json!(format!("{}/mcp", listener.url)),
        json!(format!("${{file:{}}}", place("file").display())),
    );
    (config, listener, directory)
}

/// Uses the rotating secrets before and after a rotation.
fn use_rotating_secrets(gateway: &Gateway, planted: &PlantedSecrets) -> Vec<Value> {
    let mut errors = Vec::new();
    let place = |name: &str| planted.directory.path().join(name);
    credentials::set_secret(gateway, "stored", &canary_text(ROTATING.start));
    credentials::wait_for_listed_server(gateway, "kept", "ready");
    let mut session = gateway.open_session("/mcp");
    for rotation in 0..2 {
        for _ in 0..3 {
            errors.push(session.call("kept__look", &json!({}))["error"].clone());
        }
        if rotation == 0 {
            std::fs::write(place("file"), canary_text(ROTATING.start + 3)).unwrap();
            std::fs::write(place("printed"), canary_text(ROTATING.start + 5)).unwrap();
            credentials::set_secret(gateway, "stored", &canary_text(ROTATING.start + 1));
        }
    }
    errors
}

fn plant_secrets() -> PlantedSecrets {
    let c = canary_text;
    let env = |first: usize| {
        format!(
            "env = {{ API_KEY = {}, PLAIN = {}, ODD = {} }}",
            json!(c(first)),
            json!(c(first + 1)),
            json!(c(2)),
        )
    };
    let serve = format!("exec {}", fixture_binary().display());
    let gate = StubServer::start(|asked| (403, echo_request(asked)));
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let web = StubServer::start_mcp(move |asked| {
        let said = json!(echo_request(asked));
        let id = &asked.json()["id"];
        match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => (500, said.to_string()),
            // The preview ends in the middle of a secret.
            4 => {
                let bearer = asked.header("authorization").unwrap_or_default();
                let shown = PREVIEW_CHARS - bearer.len() + 4;
                (502, format!("{}{bearer}", "x".repeat(shown)))
            }
            1 => (404, said.to_string()),
            2 => (401, said.to_string()),
            3 => (200, said.to_string()),
            _ => {
                let error = json!({"code": -32000, "message": said});
                let answer = json!({"jsonrpc": "2.0", "id": id, "error": error});
                (200, answer.to_string())
            }
        }
    });
    let collector = StubServer::start_collector();
    let (kept_config, kept, directory) = plant_rotating_secrets();
    let remote = |name: &str, url: &str, first: usize| {
        format!(
            "[servers.{name}]\nurl = {}\nheaders = {{ Authorization = {}, X-Custom = {} }}\n",
            json!(format!("{url}/mcp?key={}&other={}", c(first), c(first + 1))),
            json!(format!("Bearer {}", c(first + 2))),
            json!(c(first + 3)),
        )
    };
    let (token, flag) = (c(3), format!("--api-key={}", c(4)));
    let config = [
        format!("[telemetry]\notlp = {}\n", json!(collector.url)),
        shell_server("noisy", &serve, &["--token", &token], &env(0)),
        shell_server("dying", "exit 3", &[&flag], &env(5)),
        shell_server(
            "late",
            "read line; echo \"$API_KEY\" >&2; exit 4",
            &[],
            &env(7),
        ),
        remote("web", &web.url, 9),
        remote("gate", &gate.url, 11),
        kept_config,
    ]
    .concat();
    PlantedSecrets {
        config,
        _refusing: gate,
        web,
        collector,
        rotating: kept,
        directory,
    }
}

/// Makes calls that fail in every way; returns the gateway's own errors.
fn call_everything(gateway: &Gateway) -> Vec<Value> {
    let secret = |number: usize| canary_text(CANARIES - IN_CALLS + number);
    let mut session = gateway.open_session("/mcp");
    let mut errors = Vec::new();
    let mut failed = |answer: Value| {
        let error = answer["error"].clone();
        // The server's own error belongs to the caller, whole.
        if error["data"]["origin"].is_string() {
            errors.push(error);
        }
    };
    for (tool, arguments) in [
        ("noisy__echo", json!({"message": secret(0)})),
        ("noisy__fail", json!({"message": secret(1)})),
        (
            "noisy__rpc_error",
            json!({"code": -32000, "message": secret(2)}),
        ),
        ("noisy__no_such_tool", json!({"message": secret(3)})),
        ("dying__echo", json!({"message": secret(0)})),
        ("late__echo", json!({"message": secret(1)})),
        ("gate__look", json!({"message": secret(2)})),
    ] {
        failed(session.call(tool, &arguments));
    }
    // The log names a resource whose read fails; this name contains a secret.
    let read = json!({"uri": format!("x://{}", canary_text(12))});
    failed(
        gateway
            .open_session("/servers/web/mcp")
            .request("resources/read", &read),
    );
    for _ in 0..7 {
        failed(session.call("web__look", &json!({"message": secret(3)})));
    }
    failed(session.call(
        "noisy__crash",
        &json!({"when": "before", "message": secret(0)}),
    ));
    errors
}

fn find_canaries(canaries: &[String], name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for canary in canaries {
        let quoted = json!(canary).to_string();
        let quoted = quoted.trim_matches('"');
        // Most of a canary counts as a leak too.
        let most = &canary[..canary.len() - 4];
        if text.contains(most) || text.contains(quoted) {
            let line = text.lines().find(|line| line.contains(&canary[..6]));
            found.push(format!("{name}: {canary}: {}", line.unwrap_or_default()));
        }
    }
    found
}

fn open_event_stream(gateway: &Gateway) -> HttpConnection {
    let mut events = HttpConnection::connect(gateway.address);
    let token = format!("Bearer {}", gateway.token);
    let headers = [
        ("Authorization", token.as_str()),
        ("Accept", "text/event-stream"),
    ];
    events.send_request("GET", "/api/v1/events", &headers, b"");
    assert_eq!(events.read_head().status, 200);
    events
}

/// Collects the output of commands for people.
fn collect_command_output(gateway: &Gateway) -> Vec<(String, String)> {
    let all = [
        &["logs"][..],
        &["logs", "--json"],
        &["status"],
        &["status", "--json"],
        &["ls"],
        &["ls", "--json"],
        &["secret", "ls"],
        &["secret", "ls", "--json"],
        &["outbox", "ls", "--json"],
        &["audit", "tail", "-n", "1000"],
        &["audit", "export"],
    ];
    let told = all.iter().map(|args| {
        let out = gateway.run_cli(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        let text = [out.stdout, out.stderr].concat();
        (args.join(" "), String::from_utf8_lossy(&text).into_owned())
    });
    told.collect()
}

#[test]
fn sec_41_planted_secrets_appear_in_no_output() {
    let planted = plant_secrets();
    let canaries: Vec<_> = (0..CANARIES).chain(ROTATING).map(canary_text).collect();
    let log = tempfile::NamedTempFile::new().unwrap();
    let stderr = File::create(log.path()).unwrap();
    let outside = canary_text(15);
    let mut gateway = Gateway::start_with_command(&planted.config, |up| {
        up.env("BOWLINE_LOG", "trace");
        up.env("FROM_OUTSIDE", &outside);
        up.stderr(Stdio::from(stderr));
    });
    let mut events = open_event_stream(&gateway);
    gateway.wait_for_state("noisy", "ready");
    gateway.wait_for_state("web", "ready");
    for failing in ["dying", "late", "gate"] {
        wait_until(&format!("{failing} failed"), || {
            gateway.server_status(failing)["last_error"].is_object()
        });
    }
    let mut errors = call_everything(&gateway);
    errors.extend(use_rotating_secrets(&gateway, &planted));
    gateway.control_server("noisy", "restart");
    gateway.wait_for_state("noisy", "ready");

    let mut told: Vec<(String, String)> = Vec::new();
    for (number, error) in errors.iter().enumerate() {
        told.push((format!("error {number}"), error.to_string()));
    }
    told.extend(collect_command_output(&gateway));
    for path in ["/api/v1/status", "/api/v1/discover"] {
        told.push((path.to_owned(), gateway.get_api(path).to_string()));
    }
    told.push(("metrics".to_owned(), scrape_metrics(&gateway)));
    let token = gateway.token.clone();
    let run: PathBuf = gateway.state_dir().join("run.json");
    told.push(("run.json".to_owned(), std::fs::read_to_string(run).unwrap()));
    assert!(gateway.stop());
    let mut happened = String::new();
    while let Some(chunk) = events.read_chunk() {
        happened.push_str(&String::from_utf8_lossy(&chunk));
    }
    told.push(("events".to_owned(), happened));
    for (number, export) in planted.collector.requests().iter().enumerate() {
        let body = String::from_utf8_lossy(&export.body).into_owned();
        told.push((format!("export {number}"), body));
    }
    told.push((
        "log".to_owned(),
        std::fs::read_to_string(log.path()).unwrap(),
    ));

    assert_was_planted(&planted, &told);
    let secrets = [canaries, vec![token]].concat();
    let found: Vec<_> = told
        .iter()
        .flat_map(|(name, text)| find_canaries(&secrets, name, text))
        .collect();
    assert!(
        found.is_empty(),
        "{} found:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Guards against an empty test: the secrets reached servers, and the outputs contain their labels.
fn assert_was_planted(planted: &PlantedSecrets, told: &[(String, String)]) {
    let seen = planted.web.requests();
    let bearer = format!("Bearer {}", canary_text(11));
    assert!(
        seen.iter()
            .any(|one| one.header("authorization") == Some(&bearer))
    );
    assert!(seen.iter().any(|one| one.path.contains(&canary_text(9))));
    let kept = planted.rotating.requests();
    let kept: Vec<_> = kept.iter().map(echo_request).collect();
    for number in ROTATING {
        // The output of a failed command is not used.
        let is_sent = number != ROTATING.end - 1;
        let secret = canary_text(number);
        assert_eq!(
            kept.iter().any(|said| said.contains(&secret)),
            is_sent,
            "{number}"
        );
    }
    let part = |name: &str| {
        let found = told.iter().find(|(known, _)| known == name);
        found.unwrap().1.as_str()
    };
    for label in [
        "‹env API_KEY›",
        "‹env PLAIN›",
        "‹env ODD›",
        "‹env FROM_OUTSIDE›",
    ] {
        assert!(part("logs").contains(label), "{label} in {}", part("logs"));
    }
    assert!(part("logs").contains("‹argument"), "{}", part("logs"));
    assert!(
        part("status --json").contains("‹env API_KEY›"),
        "{}",
        part("status --json")
    );
    let errors = told.iter().filter(|(name, _)| name.starts_with("error "));
    let errors: Vec<_> = errors.map(|(_, text)| text.as_str()).collect();
    assert!(errors.len() >= 8, "{errors:#?}");
    assert!(
        errors.iter().any(|text| text.contains("‹header")),
        "{errors:#?}"
    );
    assert!(part("export 0").contains("noisy"), "{}", part("export 0"));
    assert!(part("events").contains("dying"), "{}", part("events"));
    assert!(
        part("log").contains("tool=x://‹header"),
        "the address was logged"
    );
    assert!(part("log").len() > 10_000, "a log at this level is long");
}
