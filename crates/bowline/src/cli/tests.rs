//! Commands against a scripted gateway: exact output and exit codes.

use super::fake_gateway::{self, FakeGateway, FakeScript, json_response};
use super::output::captured::{CapturedOutput, captured_output};
use super::*;

const SERVERS: &str = r#"{"v":1,"servers":[
 {"name":"files","state":"ready","lazy":false,"command":"npx -y files","tools":2,"pid":7},
 {"name":"github","state":"idle","lazy":true,"command":"gh mcp","tools":0,"pid":null},
 {"name":"odd","state":"backoff","command":"odd","tools":0,"last_error":{"class":"connect_failed",
  "message":"exit code 1","age_ms":5}}],"broken":[{"name":"unset","reason":"no $KEY"}]}"#;
const TOOLS: &str = r#"{"v":1,"tools":[
 {"server":"files","tool":"read_file","name":"files__read_file","effect":"read","definition":
  {"name":"read_file","description":"Reads a \u001bfile.\nMore.","inputSchema":{"type":"object",
   "required":["path"],"properties":{"path":{"type":"string"},"head":{"type":"integer"}}}}},
 {"server":"files","tool":"list","name":"files__list","effect":"unknown","definition":
  {"name":"list","inputSchema":{"type":"object"}}}],"unlisted":[]}"#;
const NO_TOOLS: &str = r#"{"v":1,"tools":[],"unlisted":[]}"#;

struct CommandRun {
    outcome: Result<CliExit, CliFailure>,
    stdout: String,
    stderr: String,
}

fn run_command(fake: &FakeGateway, words: &str) -> CommandRun {
    let cli = CliArgs::try_parse_from(words.split_whitespace()).unwrap();
    let format = if cli.global.json {
        OutputFormat::Json
    } else {
        OutputFormat::Human
    };
    let (mut context, stdout, stderr) = fake.command_context(format);
    let outcome = dispatch_command(&cli.command, &mut context);
    if let Err(failure) = &outcome {
        context.out.write_failure(failure);
    }
    CommandRun {
        outcome,
        stdout: stdout.text(),
        stderr: stderr.text(),
    }
}

fn scripted_gateway() -> FakeGateway {
    FakeGateway::start([
        ("GET /api/v1/servers", json_response(200, SERVERS)),
        ("GET /api/v1/tools?server=files", json_response(200, TOOLS)),
        ("GET /api/v1/tools", json_response(200, NO_TOOLS)),
        ("POST /api/v1/call", call_script()),
        (
            "POST /api/v1/servers/files/restart",
            json_response(200, RESTARTED),
        ),
        (
            "POST /api/v1/servers/files/stop",
            json_response(200, STOPPED),
        ),
        (
            "POST /api/v1/servers/files/start",
            json_response(200, FAILED),
        ),
        (
            "POST /api/v1/servers/fils/stop",
            json_response(404, NOT_FOUND),
        ),
    ])
}

const RESTARTED: &str = r#"{"v":1,"server":{"name":"files","state":"ready","pid":8}}"#;
const STOPPED: &str = r#"{"v":1,"server":{"name":"files","state":"stopped","pid":null}}"#;
const FAILED: &str = r#"{"v":1,"server":{"name":"files","state":"backoff",
 "last_error":{"class":"connect_failed","message":"exit code 1","age_ms":5}}}"#;
const NOT_FOUND: &str = r#"{"error":{"code":"server_not_found","message":"no server \"fils\""}}"#;

fn call_script() -> FakeScript {
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
        Some(fake_gateway::response_bytes(
            status,
            &[("content-type", "application/json")],
            body,
        ))
    })
}

#[test]
fn ls_shows_servers_tools_and_one_schema() {
    let fake = scripted_gateway();
    assert_eq!(
        run_command(&fake, "bowline ls").stdout,
        "\
SERVER  STATE    TOOLS  COMMAND       NOTE
files   ready    2      npx -y files
github  idle     0      gh mcp
odd     backoff  0      odd           connect_failed: exit code 1
unset   broken   -                    no $KEY
"
    );
    assert_eq!(
        run_command(&fake, "bowline ls files").stdout,
        "read_file(path: string, head?: integer)  Reads a \\x1bfile.\nlist()\n"
    );
    assert_eq!(
        run_command(&fake, "bowline ls files.list").stdout,
        "files.list()\neffect: unknown\n\ninput: {\n  \"type\": \"object\"\n}\n"
    );
    let json = run_command(&fake, "bowline ls files.list --json").stdout;
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&value["v"], &value["definition"]["name"]),
        (&1.into(), &"list".into())
    );
    assert_eq!(
        run_command(&fake, "bowline ls --json")
            .stdout
            .lines()
            .count(),
        1
    );
}

#[test]
fn ls_suggests_similar_names() {
    let fake = scripted_gateway();
    let missing = run_command(&fake, "bowline ls fils");
    assert_eq!(missing.outcome.unwrap_err().exit, CliExit::Usage);
    assert_eq!(
        missing.stderr,
        "error[server_not_found]: no server \"fils\"\n  did you mean files?\n"
    );
    assert_eq!(
        run_command(&fake, "bowline ls files.lsit").stderr,
        "error[tool_not_found]: server `files` has no tool \"lsit\"\n  did you mean list?\n"
    );
    assert_eq!(
        run_command(&fake, "bowline ls github").stderr,
        "the server offers no tools\n"
    );
}

#[test]
fn call_types_arguments_and_prints_text() {
    let fake = scripted_gateway();
    let done = run_command(
        &fake,
        "bowline call files.read_file path=5 head=3 --timeout 2s",
    );
    assert_eq!(done.outcome, Ok(CliExit::Ok));
    assert_eq!(done.stdout, "hello\n");
    assert_eq!(done.stderr, "ok · 11 ms · files\n");
    assert_eq!(
        fake.requests().last().unwrap().body,
        "{\"server\":\"files\",\"tool\":\"read_file\",\"timeout_ms\":2000,\
         \"arguments\":{\"path\":\"5\",\"head\":3}}"
    );
    let failed = run_command(&fake, "bowline call files.list --args {}");
    assert_eq!(failed.outcome, Ok(CliExit::Tool));
    assert_eq!(failed.stderr, "tool error · 1 ms · files\n");
}

#[test]
fn mistyped_call_shows_corrected_command() {
    let fake = scripted_gateway();
    let server = run_command(&fake, "bowline call fils.read_file --args {}");
    assert_eq!(
        server.stderr,
        "error[server_not_found]: no server \"fils\"\n  \
         did you mean files?  →  bowline call files.read_file --args '{}'\n"
    );
    assert_eq!(
        run_command(&fake, "bowline call files.read_fiel path=x").stderr,
        "error[tool_not_found]: server `files` has no tool \"read_fiel\"\n  \
         did you mean read_file?  →  bowline call files.read_file path=x\n"
    );
    let json = run_command(&fake, "bowline call fils.read_file --args {} --json");
    let value: serde_json::Value = serde_json::from_str(&json.stderr).unwrap();
    assert_eq!(value["error"]["code"], "server_not_found");
    assert_eq!(value["error"]["suggestions"][0], "files");
    assert_eq!(json.stdout, "");
}

#[test]
fn call_without_tool_is_usage_error() {
    let failure = run_command(&scripted_gateway(), "bowline call files")
        .outcome
        .unwrap_err();
    assert_eq!(failure.exit, CliExit::Usage);
    assert_eq!(failure.hints, ["list them: bowline ls files"]);
}

#[test]
fn restart_prints_state_or_suggestion() {
    let fake = scripted_gateway();
    assert_eq!(
        run_command(&fake, "bowline restart files").stdout,
        "files is ready (pid 8)\n"
    );
    assert_eq!(
        run_command(&fake, "bowline stop fils").stderr,
        "error[server_not_found]: no server \"fils\"\n  did you mean files?\n"
    );
    assert_eq!(
        run_command(&fake, "bowline stop files").stdout,
        "files is stopped; calls are refused until: bowline start files\n"
    );
}

#[test]
fn failed_start_reports_reason() {
    let fake = scripted_gateway();
    let failed = run_command(&fake, "bowline start files");
    assert_eq!(failed.outcome.unwrap_err().exit, CliExit::Unreachable);
    assert_eq!(
        failed.stderr,
        "error[start_failed]: files is backoff: exit code 1\n  see: bowline logs files\n"
    );
    let json = run_command(&fake, "bowline start files --json");
    assert_eq!(json.outcome, Ok(CliExit::Unreachable));
    assert_eq!(json.stdout.lines().count(), 1);
}

#[test]
fn status_fits_on_one_screen_and_names_problems() {
    let body = r#"{"v":1,"version":"0.1.0","pid":5,"uptime_ms":8040000,"insecure_no_auth":true,
        "url":"http://127.0.0.1:7331","config":"/c.toml","sessions":1,"streams":0,"servers":[
        {"name":"a","state":"ready","era":"modern","tools":3,"calls":12,"errors":1,"in_flight":2,"queued":1,
         "error_rate":0.083,"p50_us":340,"p99_us":12345,"memory_bytes":43000000,
         "circuit":"closed","own_links":2,"isolated_because":"it asked"},
        {"name":"b","state":"ready","era":"legacy","circuit":"open","consecutive_failures":5,
         "retry_after_ms":12000,"restart_count":2,
         "last_error":{"class":"lost","message":"exit 1\n\u001b","age_ms":3000}},
        {"name":"c","state":"ejected","ejected":true,"circuit":"closed",
         "last_error":{"class":"lost","message":"gone","age_ms":3000}},
        {"name":"d","state":"stopped","circuit":"closed",
         "last_error":{"class":"lost","message":"long ago","age_ms":3000}}],
        "broken":[{"name":"e","reason":"no $KEY"}]}"#;
    let fake = FakeGateway::start([("GET /api/v1/status", json_response(200, body))]);
    assert_eq!(
        run_command(&fake, "bowline status").stdout,
        "\
bowline 0.1.0 · up 2 h 14 m · pid 5 · 1 session · http://127.0.0.1:7331 · 3 problems
config /c.toml
NO AUTHENTICATION: any local process may call tools (--insecure-no-auth)
SERVER  STATE      TOOLS  CALLS  ERR%  P50     P99    RESTARTS  MEM     NOTE
a       ● ready    3      12     8.3   0.3 ms  12 ms  0         41 MiB  modern · 2 in flight · 1 waiting · \
2 own links · not shared: it asked
b       ● ready    0      0      -     -       -      2         -       breaker: 5 failures, \
probe in 12 s · lost: exit 1 \\x1b (3 s ago) · see: bowline logs b
c       ✗ ejected  0      0      -     -       -      0         -       lost: gone (3 s ago) · \
see: bowline logs c, then bowline restart c
d       ○ stopped  0      0      -     -       -      0         -       run: bowline start d
e       ✗ broken   -      -      -     -       -      -         -       no $KEY · see: bowline check
"
    );
}

#[test]
fn server_status_shows_limits() {
    let body = r#"{"v":1,"server":{"name":"a","state":"backoff","command":"npx (2 arguments)",
        "era":"legacy","generation":3,"tools":4,"manifest":"last_known","calls":9,"errors":1,"error_rate":0.5,
        "p50_us":340,"p99_us":12345,"processes":2,"memory_bytes":43000000,"circuit":"closed",
        "restart_count":1,"retry_after_ms":5000,"cache_entries":2,"cache_bytes":2048,
        "cache_hits":7,"cache_misses":3,"cache_evictions":1,
        "last_error":{"class":"lost","message":"exit code 1","age_ms":3000},
        "limits":{"calls_max":256,"queue_max":16,"call_timeout_ms":300000,
         "start_timeout_ms":30000,"restarts_max":5,"restart_window_ms":300000,
         "memory_bytes_max":2147483648,"processes_max":512,"file_bytes_max":1073741824,
         "open_files_max":1024}}}"#;
    let fake = FakeGateway::start([("GET /api/v1/servers/a", json_response(200, body))]);
    assert_eq!(
        run_command(&fake, "bowline status a").stdout,
        "\
a · ✗ backoff · start 3
  reached by  npx (2 arguments)
  speaks      legacy (with a handshake)
  tools       4 (as it offered them when it last served)
  calls       9 ended · 1 error · 50 % of late · p50 0.3 ms · p99 12 ms · 0 in flight · \
0 waiting · 0 turned away
  cache       2 answers kept · 2 KiB · 7 hits · 3 missed · 1 made room
  uses        41 MiB in 2 processes
  restarts    1 of 5 in 5 m 0 s
  breaker     closed
  limits      256 calls at once · 16 more may wait · 5 m 0 s each · start within 30 s · \
memory 2 GiB · 512 processes · files of 1 GiB · 1024 open files
  next try    in 5 s
  last error  lost: exit code 1 (3 s ago)
  help        see: bowline logs a
"
    );
    let json = run_command(&fake, "bowline status a --json").stdout;
    assert_eq!(json.lines().count(), 1);
}

#[test]
fn watched_status_redraws_on_events() {
    let events = "event: hello\ndata: {\"event\":\"hello\"}\n\n: alive\n\n\
                  id: 1\nevent: state\ndata: {\"seq\":1,\"event\":\"state\"}\n\n";
    let stream =
        fake_gateway::response_bytes(200, &[("content-type", "text/event-stream")], events);
    let fake = FakeGateway::start([
        (
            "GET /api/v1/events",
            std::sync::Arc::new(move |_| Some(stream.clone())),
        ),
        (
            "GET /api/v1/status",
            json_response(200, r#"{"v":1,"servers":[]}"#),
        ),
    ]);
    let watched = run_command(&fake, "bowline status --watch --json");
    assert_eq!(watched.outcome, Ok(CliExit::Ok));
    assert_eq!(
        watched.stdout,
        "{\"event\":\"hello\"}\n{\"seq\":1,\"event\":\"state\"}\n"
    );
    assert_eq!(watched.stderr, "the gateway stopped\n");
    assert!(
        fake.requests()
            .iter()
            .all(|asked| asked.line != "GET /api/v1/status")
    );
    let refused = FakeGateway::start([(
        "GET /api/v1/events",
        json_response(429, r#"{"error":{"code":"busy"}}"#),
    )]);
    assert_eq!(
        run_command(&refused, "bowline status --watch")
            .outcome
            .unwrap_err()
            .code,
        "busy"
    );
}

#[test]
fn logs_print_and_follow_until_gateway_stops() {
    let page = r#"{"v":1,"lines":[{"seq":4,"server":"a","at_ms":1,"text":"x\ty"}],"next":4}"#;
    let more = r#"{"v":1,"lines":[{"seq":5,"server":"a","at_ms":1,"text":"z"}],"next":5}"#;
    let fake = FakeGateway::start([
        (
            "GET /api/v1/logs?limit=200&server=a",
            json_response(200, page),
        ),
        (
            "GET /api/v1/logs?after=4&limit=1000&server=a&wait_ms=25000",
            json_response(200, more),
        ),
        (
            "GET /api/v1/logs?after=5&limit=1000&server=a&wait_ms=25000",
            json_response(503, "{}"),
        ),
    ]);
    assert_eq!(run_command(&fake, "bowline logs a").stdout, "a | x y\n");
    let followed = run_command(&fake, "bowline logs a -f");
    assert_eq!(followed.stdout, "a | x y\na | z\n");
    assert_eq!(followed.outcome.unwrap_err().exit, CliExit::Unreachable);
    assert_eq!(
        run_command(&fake, "bowline logs a -f --json")
            .stdout
            .lines()
            .count(),
        2
    );
}

fn run_check(
    text: &str,
    format: OutputFormat,
) -> (Result<CliExit, CliFailure>, CapturedOutput, CapturedOutput) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bowline.toml");
    std::fs::write(&path, text).unwrap();
    let (out, stdout, stderr) = captured_output(format);
    let global = GlobalArgs {
        config: Some(path),
        ..GlobalArgs::default()
    };
    let mut context = CommandContext {
        global,
        env: EnvVars::default(),
        out,
    };
    let outcome = dispatch_command(&CliCommand::Check, &mut context);
    (outcome, stdout, stderr)
}

#[test]
fn check_shows_servers_and_warnings() {
    let text = "[servers.a]\ncommand = \"x\"\nenv = { LD_PRELOAD = \"y\" }\n\
                [servers.b]\ncommand = \"${NOT_SET}\"\n";
    let (outcome, stdout, stderr) = run_check(text, OutputFormat::Human);
    assert_eq!(outcome, Ok(CliExit::Ok));
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
    let (_, stdout, _) = run_check(text, OutputFormat::Json);
    let value: serde_json::Value = serde_json::from_str(&stdout.text()).unwrap();
    assert_eq!(value["broken"][0]["name"], "b");
    assert_eq!(value["warnings"][0]["line"], 3);
}

#[test]
fn check_of_invalid_file_is_exit_2() {
    let (outcome, stdout, _) = run_check("[x]\n", OutputFormat::Human);
    assert_eq!(outcome.unwrap_err().exit, CliExit::Usage);
    assert_eq!(stdout.text(), "");
}

#[test]
fn version_needs_no_gateway() {
    assert!(
        run_command(&scripted_gateway(), "bowline version")
            .stdout
            .starts_with("bowline 0.")
    );
}
