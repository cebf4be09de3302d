//! Secrets that are planted everywhere and looked for in everything that people read.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::credentials;
use crate::harness::listener::{Asked, Listener};
use crate::harness::{Gateway, Http, bowline, eventually};
use crate::metrics::scrape;

/// How many are planted.
const CANARIES: usize = 20;

/// Of those, the ones that no configuration knows: they travel in the arguments of calls.
const IN_CALLS: usize = 4;

/// Secrets of a store, a file and a command, each before and after it was rotated.
const KEPT: std::ops::Range<usize> = 100..106;

/// How much of what a server says in place of an answer is shown.
const PREVIEW_CHARS: usize = 200;

/// A text that stands nowhere else. One of them needs escapes wherever it is quoted.
fn canary(number: usize) -> String {
    let odd = if number == 2 { "\"q\\ " } else { "-" };
    format!("cnry{number:02}{odd}{:08x}zz", (number + 1) * 0x0123_4567)
}

/// Prints what it knows on stderr.
const TELL: &str = r#"printf '%s\n' "env $API_KEY / $PLAIN / $ODD / $FROM_OUTSIDE args $*" >&2"#;

fn shell(name: &str, script: &str, args: &[&str], more: &str) -> String {
    let script = format!("{TELL}\n{script}");
    let args = [&["-c", &script, "sh"], args].concat();
    format!(
        "[servers.{name}]\ncommand = \"sh\"\nargs = {}\ninherit_env = [\"FROM_OUTSIDE\"]\n{more}\n",
        json!(args)
    )
}

/// Says everything back that it was asked with, in the place where a message should stand.
fn echo(asked: &Asked) -> String {
    let header = |name| asked.header(name).unwrap_or_default();
    let (bearer, custom) = (header("authorization"), header("x-custom"));
    let more = header("x-more");
    format!("you sent {custom} {bearer} {more} to {}", asked.path)
}

struct Planted {
    config: String,
    /// Refuses the handshake.
    _gate: Listener,
    /// Shakes hands, and fails each call in another way.
    web: Listener,
    collector: Listener,
    /// Is sent secrets of a store, a file and a command.
    kept: Listener,
    /// Where the file is, and what the command prints.
    directory: tempfile::TempDir,
}

/// Plants secrets that may change; the one of the store is put away later.
fn plant_kept() -> (String, Listener, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    std::fs::write(place("file"), canary(KEPT.start + 2)).unwrap();
    std::fs::write(place("printed"), canary(KEPT.start + 4)).unwrap();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let listener = Listener::mcp(move |asked| {
        let status = match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3 {
            0 => 500,
            1 => 401,
            _ => 403,
        };
        (status, json!(echo(asked)).to_string())
    });
    // It says on stderr what it printed, and fails from the second time on.
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

/// Has the kept secrets sent and said back, rotates them, and has that done again.
fn use_kept(gateway: &Gateway, planted: &Planted) -> Vec<Value> {
    let mut errors = Vec::new();
    let place = |name: &str| planted.directory.path().join(name);
    credentials::set(gateway, "stored", &canary(KEPT.start));
    credentials::comes(gateway, "kept", "ready");
    let mut session = gateway.session("/mcp");
    for rotation in 0..2 {
        for _ in 0..3 {
            errors.push(session.call("kept__look", &json!({}))["error"].clone());
        }
        if rotation == 0 {
            std::fs::write(place("file"), canary(KEPT.start + 3)).unwrap();
            std::fs::write(place("printed"), canary(KEPT.start + 5)).unwrap();
            credentials::set(gateway, "stored", &canary(KEPT.start + 1));
        }
    }
    errors
}

fn plant() -> Planted {
    let c = canary;
    let env = |first: usize| {
        format!(
            "env = {{ API_KEY = {}, PLAIN = {}, ODD = {} }}",
            json!(c(first)),
            json!(c(first + 1)),
            json!(c(2)),
        )
    };
    let serve = format!("exec {} fixture", bowline().display());
    let gate = Listener::start(|asked| (403, echo(asked)));
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let web = Listener::mcp(move |asked| {
        let said = json!(echo(asked));
        let id = &asked.json()["id"];
        match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => (500, said.to_string()),
            // Only the beginning is shown, which ends in the middle of a secret.
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
    let collector = Listener::collector();
    let (kept_config, kept, directory) = plant_kept();
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
        shell("noisy", &serve, &["--token", &token], &env(0)),
        shell("dying", "exit 3", &[&flag], &env(5)),
        shell(
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
    Planted {
        config,
        _gate: gate,
        web,
        collector,
        kept,
        directory,
    }
}

/// Every call that goes wrong in a way of its own; returns what the gateway itself said of it.
fn call_everything(gateway: &Gateway) -> Vec<Value> {
    let secret = |number: usize| canary(CANARIES - IN_CALLS + number);
    let mut session = gateway.session("/mcp");
    let mut errors = Vec::new();
    let mut failed = |answer: Value| {
        let error = answer["error"].clone();
        // What the server itself answered is for the caller, whole.
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
    // What is read is named in the log when it fails; here its name holds a secret.
    let read = json!({"uri": format!("x://{}", canary(12))});
    failed(
        gateway
            .session("/servers/web/mcp")
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

fn find(canaries: &[String], name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for canary in canaries {
        let quoted = json!(canary).to_string();
        let quoted = quoted.trim_matches('"');
        // Most of it is as good as all of it.
        let most = &canary[..canary.len() - 4];
        if text.contains(most) || text.contains(quoted) {
            let line = text.lines().find(|line| line.contains(&canary[..6]));
            found.push(format!("{name}: {canary}: {}", line.unwrap_or_default()));
        }
    }
    found
}

fn watched(gateway: &Gateway) -> Http {
    let mut events = Http::connect(gateway.address);
    let token = format!("Bearer {}", gateway.token);
    let headers = [
        ("Authorization", token.as_str()),
        ("Accept", "text/event-stream"),
    ];
    events.send("GET", "/api/v1/events", &headers, b"");
    assert_eq!(events.read_head().status, 200);
    events
}

/// What people read of it.
fn commands(gateway: &Gateway) -> Vec<(String, String)> {
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
        let out = gateway.cli(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        let text = [out.stdout, out.stderr].concat();
        (args.join(" "), String::from_utf8_lossy(&text).into_owned())
    });
    told.collect()
}

#[test]
fn sec_41_planted_secrets_are_in_no_log_status_metric_trace_event_or_error() {
    let planted = plant();
    let canaries: Vec<_> = (0..CANARIES).chain(KEPT).map(canary).collect();
    let log = tempfile::NamedTempFile::new().unwrap();
    let stderr = File::create(log.path()).unwrap();
    let outside = canary(15);
    let mut gateway = Gateway::up_as(&planted.config, |up| {
        up.env("BOWLINE_LOG", "trace");
        up.env("FROM_OUTSIDE", &outside);
        up.stderr(Stdio::from(stderr));
    });
    let mut events = watched(&gateway);
    gateway.wait_for("noisy", "ready");
    gateway.wait_for("web", "ready");
    for failing in ["dying", "late", "gate"] {
        eventually(&format!("{failing} failed"), || {
            gateway.status(failing)["last_error"].is_object()
        });
    }
    let mut errors = call_everything(&gateway);
    errors.extend(use_kept(&gateway, &planted));
    gateway.order("noisy", "restart");
    gateway.wait_for("noisy", "ready");

    let mut told: Vec<(String, String)> = Vec::new();
    for (number, error) in errors.iter().enumerate() {
        told.push((format!("error {number}"), error.to_string()));
    }
    told.extend(commands(&gateway));
    for path in ["/api/v1/status", "/api/v1/discover"] {
        told.push((path.to_owned(), gateway.api(path).to_string()));
    }
    told.push(("metrics".to_owned(), scrape(&gateway)));
    let token = gateway.token.clone();
    let run: PathBuf = gateway.state().join("run.json");
    told.push(("run.json".to_owned(), std::fs::read_to_string(run).unwrap()));
    assert!(gateway.stop());
    let mut happened = String::new();
    while let Some(chunk) = events.read_chunk() {
        happened.push_str(&String::from_utf8_lossy(&chunk));
    }
    told.push(("events".to_owned(), happened));
    for (number, export) in planted.collector.asked().iter().enumerate() {
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
        .flat_map(|(name, text)| find(&secrets, name, text))
        .collect();
    assert!(
        found.is_empty(),
        "{} found:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Nothing is proved by secrets that were never near: they reached servers, and what is told of
/// them holds their labels.
fn assert_was_planted(planted: &Planted, told: &[(String, String)]) {
    let seen = planted.web.asked();
    let bearer = format!("Bearer {}", canary(11));
    assert!(
        seen.iter()
            .any(|one| one.header("authorization") == Some(&bearer))
    );
    assert!(seen.iter().any(|one| one.path.contains(&canary(9))));
    let kept = planted.kept.asked();
    let kept: Vec<_> = kept.iter().map(echo).collect();
    for number in KEPT {
        // What a command prints when it fails is not taken.
        let is_sent = number != KEPT.end - 1;
        let secret = canary(number);
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
