//! Commands against a scripted gateway: exact output, exact exit codes.

use super::fake::{self, Fake, Script, answer};
use super::out::captured::{Captured, out};
use super::*;

const SERVERS: &str = r#"{"v":1,"servers":[
 {"name":"files","state":"ready","lazy":false,"command":"npx -y files","tools":2,"pid":7},
 {"name":"github","state":"stopped","lazy":true,"command":"gh mcp","tools":0,"pid":null}]}"#;
const TOOLS: &str = r#"{"v":1,"tools":[
 {"server":"files","tool":"read_file","name":"files__read_file","effect":"read","definition":
  {"name":"read_file","description":"Reads a \u001bfile.\nMore.","inputSchema":{"type":"object",
   "required":["path"],"properties":{"path":{"type":"string"},"head":{"type":"integer"}}}}},
 {"server":"files","tool":"list","name":"files__list","effect":"unknown","definition":
  {"name":"list","inputSchema":{"type":"object"}}}],"unlisted":[]}"#;
const NO_TOOLS: &str = r#"{"v":1,"tools":[],"unlisted":[]}"#;

struct Ran {
    outcome: Result<Exit, Failure>,
    stdout: String,
    stderr: String,
}

fn ran(fake: &Fake, words: &str) -> Ran {
    let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
    let format = if cli.global.json {
        Format::Json
    } else {
        Format::Human
    };
    let (mut context, stdout, stderr) = fake.context(format);
    let outcome = run(&cli.command, &mut context);
    if let Err(failure) = &outcome {
        context.out.failure(failure);
    }
    Ran {
        outcome,
        stdout: stdout.text(),
        stderr: stderr.text(),
    }
}

fn gateway() -> Fake {
    Fake::start([
        ("GET /api/v1/servers", answer(200, SERVERS)),
        ("GET /api/v1/tools?server=files", answer(200, TOOLS)),
        ("GET /api/v1/tools", answer(200, NO_TOOLS)),
        ("POST /api/v1/call", called()),
        ("POST /api/v1/servers/files/restart", answer(200, RESTARTED)),
        ("POST /api/v1/servers/fils/stop", answer(404, NOT_FOUND)),
    ])
}

const RESTARTED: &str = r#"{"v":1,"server":{"name":"files","state":"ready","pid":8}}"#;
const NOT_FOUND: &str = r#"{"error":{"code":"server_not_found","message":"no server \"fils\""}}"#;

fn called() -> Script {
    std::sync::Arc::new(|asked| {
        let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
        let (status, body) = match (body["server"].as_str(), body["tool"].as_str()) {
            (Some("files"), Some("read_file")) => (
                200,
                r#"{"v":1,"server":"files","tool":"read_file","origin":"live","duration_us":10800,
                 "result":{"content":[{"type":"text","text":"hello"}]}}"#,
            ),
            (Some("files"), Some("list")) => (
                200,
                r#"{"v":1,"duration_us":1,"result":{"content":[],"isError":true}}"#,
            ),
            (Some("files"), _) => (
                404,
                r#"{"error":{"code":"tool_not_found","message":"no tool"}}"#,
            ),
            _ => (
                404,
                r#"{"error":{"code":"server_not_found","message":"no server \"fils\""}}"#,
            ),
        };
        Some(fake::response(
            status,
            &[("content-type", "application/json")],
            body,
        ))
    })
}

#[test]
fn ls_shows_servers_tools_and_one_schema() {
    let fake = gateway();
    assert_eq!(
        ran(&fake, "bowline ls").stdout,
        "\
SERVER  STATE  TOOLS  COMMAND
files   ready  2      npx -y files
github  lazy   0      gh mcp
"
    );
    assert_eq!(
        ran(&fake, "bowline ls files").stdout,
        "read_file(path: string, head?: integer)  Reads a \\x1bfile.\nlist()\n"
    );
    assert_eq!(
        ran(&fake, "bowline ls files.list").stdout,
        "files.list()\neffect: unknown\n\ninput: {\n  \"type\": \"object\"\n}\n"
    );
    let json = ran(&fake, "bowline ls files.list --json").stdout;
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&value["v"], &value["definition"]["name"]),
        (&1.into(), &"list".into())
    );
    assert_eq!(ran(&fake, "bowline ls --json").stdout.lines().count(), 1);
}

#[test]
fn ls_suggests_what_was_meant() {
    let fake = gateway();
    let missing = ran(&fake, "bowline ls fils");
    assert_eq!(missing.outcome.unwrap_err().exit, Exit::Usage);
    assert_eq!(
        missing.stderr,
        "error[server_not_found]: no server \"fils\"\n  did you mean files?\n"
    );
    assert_eq!(
        ran(&fake, "bowline ls files.lsit").stderr,
        "error[tool_not_found]: server `files` has no tool \"lsit\"\n  did you mean list?\n"
    );
    assert_eq!(
        ran(&fake, "bowline ls github").stderr,
        "the server offers no tools\n"
    );
}

#[test]
fn a_call_types_its_arguments_and_prints_the_text() {
    let fake = gateway();
    let done = ran(
        &fake,
        "bowline call files.read_file path=5 head=3 --timeout 2s",
    );
    assert_eq!(done.outcome, Ok(Exit::Ok));
    assert_eq!(done.stdout, "hello\n");
    assert_eq!(done.stderr, "ok · 11 ms · files\n");
    assert_eq!(
        fake.requests().last().unwrap().body,
        "{\"server\":\"files\",\"tool\":\"read_file\",\"timeout_ms\":2000,\
         \"arguments\":{\"path\":\"5\",\"head\":3}}"
    );
    let failed = ran(&fake, "bowline call files.list --args {}");
    assert_eq!(failed.outcome, Ok(Exit::Tool));
    assert_eq!(failed.stderr, "tool error · 1 ms · files\n");
}

#[test]
fn a_call_to_a_wrong_name_shows_the_command_that_was_meant() {
    let fake = gateway();
    let server = ran(&fake, "bowline call fils.read_file --args {}");
    assert_eq!(
        server.stderr,
        "error[server_not_found]: no server \"fils\"\n  \
         did you mean files?  →  bowline call files.read_file --args '{}'\n"
    );
    assert_eq!(
        ran(&fake, "bowline call files.read_fiel path=x").stderr,
        "error[tool_not_found]: server `files` has no tool \"read_fiel\"\n  \
         did you mean read_file?  →  bowline call files.read_file path=x\n"
    );
    let json = ran(&fake, "bowline call fils.read_file --args {} --json");
    let value: serde_json::Value = serde_json::from_str(&json.stderr).unwrap();
    assert_eq!(value["error"]["code"], "server_not_found");
    assert_eq!(value["error"]["suggestions"][0], "files");
    assert_eq!(json.stdout, "");
}

#[test]
fn a_call_without_a_tool_is_a_mistake_in_the_arguments() {
    let failure = ran(&gateway(), "bowline call files").outcome.unwrap_err();
    assert_eq!(failure.exit, Exit::Usage);
    assert_eq!(failure.hints, ["list them: bowline ls files"]);
}

#[test]
fn restart_prints_the_new_state_and_a_wrong_name_a_suggestion() {
    let fake = gateway();
    assert_eq!(
        ran(&fake, "bowline restart files").stdout,
        "files is ready (pid 8)\n"
    );
    assert_eq!(
        ran(&fake, "bowline stop fils").stderr,
        "error[server_not_found]: no server \"fils\"\n  did you mean files?\n"
    );
}

#[test]
fn status_fits_on_one_screen_and_names_problems() {
    let body = r#"{"v":1,"version":"0.1.0","pid":5,"uptime_ms":8040000,"insecure_no_auth":true,
        "url":"http://127.0.0.1:7331","config":"/c.toml","sessions":1,"streams":0,"servers":[
        {"name":"a","state":"ready","tools":3,"calls":12,"errors":1,"in_flight":2,
         "circuit":"closed","own_links":2,"isolated_because":"it asked"},
        {"name":"b","state":"backoff","circuit":"open","consecutive_failures":5,
         "retry_after_ms":12000,"restart_count":2,
         "last_error":{"class":"lost","message":"exit 1\n\u001b","age_ms":3000}}]}"#;
    let fake = Fake::start([("GET /api/v1/status", answer(200, body))]);
    assert_eq!(
        ran(&fake, "bowline status").stdout,
        "\
bowline 0.1.0 · up 2 h 14 m · pid 5 · 1 session · http://127.0.0.1:7331 · 1 problem
config /c.toml
NO AUTHENTICATION: any local process may call tools (--insecure-no-auth)
SERVER  STATE      TOOLS  CALLS  ERR  RESTARTS  NOTE
a       ● ready    3      12     1    0         2 in flight · 2 own links · not shared: it asked
b       ✗ backoff  0      0      0    2         breaker: 5 failures, probe in 12 s · \
lost: exit 1 \\x1b (3 s ago) · see: bowline logs b
"
    );
}

#[test]
fn logs_are_printed_by_server_and_followed_until_the_gateway_goes() {
    let page = r#"{"v":1,"lines":[{"seq":4,"server":"a","at_ms":1,"text":"x\ty"}],"next":4}"#;
    let more = r#"{"v":1,"lines":[{"seq":5,"server":"a","at_ms":1,"text":"z"}],"next":5}"#;
    let fake = Fake::start([
        ("GET /api/v1/logs?server=a&limit=200", answer(200, page)),
        (
            "GET /api/v1/logs?server=a&after=4&limit=1000&wait_ms=25000",
            answer(200, more),
        ),
        (
            "GET /api/v1/logs?server=a&after=5&limit=1000&wait_ms=25000",
            answer(503, "{}"),
        ),
    ]);
    assert_eq!(ran(&fake, "bowline logs a").stdout, "a | x y\n");
    let followed = ran(&fake, "bowline logs a -f");
    assert_eq!(followed.stdout, "a | x y\na | z\n");
    assert_eq!(followed.outcome.unwrap_err().exit, Exit::Unreachable);
    assert_eq!(
        ran(&fake, "bowline logs a -f --json")
            .stdout
            .lines()
            .count(),
        2
    );
}

fn checked(text: &str, format: Format) -> (Result<Exit, Failure>, Captured, Captured) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bowline.toml");
    std::fs::write(&path, text).unwrap();
    let (out, stdout, stderr) = out(format);
    let global = Global {
        config: Some(path),
        ..Global::default()
    };
    let mut context = Context {
        global,
        env: Env::default(),
        out,
    };
    let outcome = run(&Command::Check, &mut context);
    (outcome, stdout, stderr)
}

#[test]
fn check_shows_servers_and_warnings() {
    let text = "[servers.a]\ncommand = \"x\"\nenv = { LD_PRELOAD = \"y\" }\n\
                [servers.b]\ncommand = \"${NOT_SET}\"\n";
    let (outcome, stdout, stderr) = checked(text, Format::Human);
    assert_eq!(outcome, Ok(Exit::Ok));
    let stdout = stdout.text();
    assert!(
        stdout.contains(
            "is valid: 1 server\nSERVER  STARTS   COMMAND OR ADDRESS\na       at once  x\n"
        )
    );
    let stderr = stderr.text();
    assert!(
        stderr.contains("warning: server `a` gets LD_PRELOAD"),
        "{stderr}"
    );
    assert!(stderr.contains("bowline.toml:3:22)"), "{stderr}");
    let broken = "warning: server `b` cannot run here: variable `NOT_SET` is not set";
    assert!(stderr.contains(broken), "{stderr}");
    let (_, stdout, _) = checked(text, Format::Json);
    let value: serde_json::Value = serde_json::from_str(&stdout.text()).unwrap();
    assert_eq!(value["broken"][0]["name"], "b");
    assert_eq!(value["warnings"][0]["line"], 3);
}

#[test]
fn check_of_a_wrong_file_is_exit_2() {
    let (outcome, stdout, _) = checked("[x]\n", Format::Human);
    assert_eq!(outcome.unwrap_err().exit, Exit::Usage);
    assert_eq!(stdout.text(), "");
}

#[test]
fn the_version_is_told_without_a_gateway() {
    assert!(
        ran(&gateway(), "bowline version")
            .stdout
            .starts_with("bowline 0.")
    );
}
