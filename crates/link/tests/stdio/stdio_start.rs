//! Starts of servers, and start failures.

use bowline_link::LinkExit;
use bowline_wire::mcp::Revision;

use super::*;

#[tokio::test]
async fn server_revision_is_negotiated() {
    for behind in BOTH {
        let script = r#"printf '%s\n' "$init" "$initialized" >&2; read -r x"#;
        let scene = StdioScene::from_server_script(behind, script);
        let link = scene.connect_link().await;
        let info = link.server_info();
        assert_eq!(info.revision, Revision::V2025_06_18);
        assert_eq!((&*info.name, &*info.version), ("t", "1.2"));
        let result = br#"{"protocolVersion":"2025-06-18","capabilities":{},"#;
        assert!(info.initialize.starts_with(result));
        assert_eq!(
            scene.wait_lines(2).await,
            [
                concat!(
                    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":"#,
                    r#"{"protocolVersion":"2025-11-25","capabilities":{"#,
                    r#""roots":{"listChanged":true},"sampling":{"tools":{}},"#,
                    r#""elicitation":{"form":{},"url":{}}},"#,
                    r#""clientInfo":{"name":"probe","version":"9"}}}"#
                ),
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            ]
        );
        assert!(link.is_open());
        assert_eq!(link.in_flight(), 0);
        link.close().await;
    }
}

#[tokio::test]
async fn unknown_revision_kills_server() {
    let script = r#"
        echo $$ >&2; trap '' TERM; read -r init
        printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1999-01-01"}}'
        while :; do sleep 1000; done"#;
    for behind in BOTH {
        let scene = StdioScene::from_script(behind, script);
        let error = scene.connect().await.unwrap_err();
        let text = "speaks the unknown revision `1999-01-01`";
        assert_eq!(error.to_string(), text);
        wait_gone(parse_pid(&scene.stderr_texts()[0])).await;
    }
}

#[tokio::test]
async fn refused_handshake_reports_server_message() {
    let script = r#"
        read -r init
        printf '%s\n' '{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no \"key\""}}'
        read -r end"#;
    let error = StdioScene::from_script(ReaperMode::Nothing, script)
        .connect()
        .await;
    let LinkConnectError::HandshakeRefused { code, message, .. } = error.unwrap_err() else {
        panic!("it is another error");
    };
    assert_eq!((code, &*message), (-32001, r#"no "key""#));
}

#[tokio::test]
async fn exit_before_handshake_reports_stderr() {
    for behind in BOTH {
        let scene =
            StdioScene::from_script(behind, "echo first >&2; echo 'KEY is not set' >&2; exit 7");
        let error = scene.connect().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "ended before the handshake: exit code 7: first | KEY is not set"
        );
        let LinkConnectError::ExitedBeforeHandshake {
            exit, stderr_tail, ..
        } = error
        else {
            panic!("it is another error");
        };
        assert_eq!(exit, LinkExit::Status(7));
        assert_eq!(stderr_tail, ["first".into(), "KEY is not set".into()]);
    }
}

#[tokio::test]
async fn silent_server_is_killed_at_deadline() {
    for behind in BOTH {
        let script = "trap '' TERM; echo $$ >&2; while :; do sleep 1000; done";
        let scene = StdioScene::from_script(behind, script);
        let error = scene.connect_within(Duration::from_secs(1)).await;
        let error = error.unwrap_err();
        assert!(
            matches!(error, LinkConnectError::HandshakeTimeout { .. }),
            "{error:?}"
        );
        wait_gone(parse_pid(&scene.stderr_texts()[0])).await;
    }
}

#[tokio::test]
async fn dropped_start_leaves_no_process() {
    for behind in BOTH {
        let scene = StdioScene::from_script(behind, "echo $$ >&2; while :; do sleep 1000; done");
        let lines = tokio::select! {
            _ = scene.connect() => panic!("it cannot connect"),
            lines = scene.wait_lines(1) => lines,
        };
        wait_gone(parse_pid(&lines[0])).await;
    }
}

#[tokio::test]
async fn missing_program_is_named() {
    for behind in BOTH {
        let scene = StdioScene::from_program(behind, "no-such-program", &["a"]);
        let error = scene.connect().await.unwrap_err();
        assert!(
            matches!(error, LinkConnectError::ProgramNotFound { .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            "its program does not exist: command not found: no-such-program"
        );
    }
}

#[tokio::test]
async fn shell_exit_codes_are_no_missing_program() {
    for code in [120, 127] {
        let scene = StdioScene::from_script(ReaperMode::Reaper, &format!("exit {code}"));
        let error = scene.connect().await.unwrap_err();
        assert!(
            matches!(error, LinkConnectError::ExitedBeforeHandshake { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn missing_directory_is_reported() {
    let mut scene = StdioScene::from_server_script(ReaperMode::Nothing, "");
    scene.spec.cwd = Some("/no/such/directory".into());
    let error = scene.connect().await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "the directory `/no/such/directory` does not exist");
}

#[tokio::test]
async fn server_gets_directory_environment_and_descriptors() {
    for behind in BOTH {
        let script = format!("pwd >&2; env >&2; echo end >&2; read -r call\n{ANSWER}\nread -r x");
        let mut scene = StdioScene::from_server_script(behind, &script);
        scene.spec.cwd = Some("/usr".into());
        let link = scene.connect_link().await;
        let mut lines = scene.wait_lines(1).await;
        while lines.last().unwrap() != "end" {
            lines = scene.wait_lines(lines.len() + 1).await;
        }
        assert_eq!(lines[0], "/usr");
        // A responding shell has closed its temporary descriptors.
        call_tool(&*link).await.unwrap();
        let kept = open_descriptors(std::process::id(), |number| {
            number > 2 && is_inherited(number)
        });
        let open = open_descriptors(link.pid().unwrap(), |number| !kept.contains(&number));
        assert_eq!(open, [0, 1, 2]);
        let names = lines[1..]
            .iter()
            .filter_map(|line| Some(line.split_once('=')?.0));
        let mark = bowline_link::MARK_VARIABLE;
        let known = ["PATH", "GIVEN", mark, "PWD", "OLDPWD", "SHLVL", "_"];
        let other: Vec<_> = names.filter(|name| !known.contains(name)).collect();
        assert!(other.is_empty(), "inherited: {other:?}");
        assert!(lines.contains(&"GIVEN=yes".to_owned()));
        link.close().await;
    }
}

fn open_descriptors(pid: u32, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut numbers: Vec<u32> = names.map(|name| name.parse().unwrap()).collect();
    numbers.retain(|number| wanted(*number));
    numbers.sort_unstable();
    numbers
}

/// Whether one of our descriptors is inherited by all children.
fn is_inherited(number: u32) -> bool {
    let Ok(info) = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
        return false;
    };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    u32::from_str_radix(flags.unwrap().trim(), 8).unwrap() & 0o2_000_000 == 0
}
