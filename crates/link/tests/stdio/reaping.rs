//! Servers leave no descendants behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use bowline_link::{GatewayInstance, LinkExit};
use bowline_testkit::{is_alive, send_signal};

use super::*;

const REAPER: &str = env!("CARGO_BIN_EXE_reaper-probe");

/// Three unreachable descendants: in a separate session, without a parent, ignoring SIGTERM. Each
/// prints its process id.
const DESCENDANTS: &str = r#"
trap '' TERM
setsid sh -c 'echo $$ >&2; exec sleep 1000' &
(setsid sh -c 'echo $$ >&2; exec sleep 1000' &)
sh -c 'echo $$ >&2; exec sleep 1000' &
"#;

async fn wait_descendants(scene: &StdioScene) -> Vec<u32> {
    scene
        .wait_lines(3)
        .await
        .iter()
        .map(|line| parse_pid(line))
        .collect()
}

#[tokio::test]
async fn stopped_server_leaves_no_descendant() {
    let scene = StdioScene::from_server_script(
        ReaperMode::Reaper,
        &format!("{DESCENDANTS} exec cat >/dev/null"),
    );
    let link = scene.connect_link().await;
    let descendants = wait_descendants(&scene).await;
    assert_eq!(link.close().await, LinkExit::Status(0));
    for pid in descendants {
        wait_gone(pid).await;
    }
}

#[tokio::test]
async fn crashed_server_leaves_no_descendant() {
    let script = format!("{DESCENDANTS} read -r call; kill -KILL $$");
    let scene = StdioScene::from_server_script(ReaperMode::Reaper, &script);
    let link = scene.connect_link().await;
    let descendants = wait_descendants(&scene).await;
    let error = call_tool(&*link).await.unwrap_err();
    assert_eq!(error, LinkError::Lost(LinkExit::Signal(9)));
    for pid in descendants {
        wait_gone(pid).await;
    }
}

#[tokio::test]
async fn reported_server_dies_with_reaper() {
    let script = "echo $$ $PPID >&2; trap '' TERM; while :; do sleep 1000; done";
    let scene = StdioScene::from_server_script(ReaperMode::Reaper, script);
    let link = scene.connect_link().await;
    let line = scene.wait_lines(1).await.remove(0);
    let (server, reaper) = line.split_once(' ').unwrap();
    assert_eq!(link.pid(), Some(server.parse().unwrap()));
    send_signal(parse_pid(reaper), "KILL");
    assert_eq!(link.wait_closed().await, LinkExit::Signal(9));
    wait_gone(parse_pid(server)).await;
}

#[tokio::test]
async fn killed_reaper_leaves_no_descendant() {
    let script = format!("{DESCENDANTS} echo $PPID >&2; while :; do sleep 1000; done");
    let scene = StdioScene::from_server_script(ReaperMode::Reaper, &script);
    let link = scene.connect_link().await;
    let mut pids: Vec<u32> = scene
        .wait_lines(4)
        .await
        .iter()
        .map(|line| parse_pid(line))
        .collect();
    let parents = pids
        .iter()
        .position(|one| is_parent_of(*one, link.pid().unwrap()));
    let reaper = pids.remove(parents.expect("the reaper is among them"));
    send_signal(reaper, "KILL");
    assert_eq!(link.wait_closed().await, LinkExit::Signal(9));
    for pid in pids {
        wait_gone(pid).await;
    }
}

fn is_parent_of(parent: u32, child: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    status.contains(&format!("\nPPid:\t{parent}\n"))
}

#[tokio::test]
async fn ended_instance_leaves_no_process_of_others() {
    let (ours, theirs) = (
        GatewayInstance::new().unwrap(),
        GatewayInstance::new().unwrap(),
    );
    let mut scenes = Vec::new();
    for instance in [&ours, &theirs] {
        let script = format!("{DESCENDANTS} while :; do sleep 1000; done");
        let mut scene = StdioScene::from_server_script(ReaperMode::Nothing, &script);
        scene.spec.instance = Some(instance.clone());
        let link = scene.connect_link().await;
        let pids = wait_descendants(&scene).await;
        scenes.push((scene, link, pids));
    }
    let end = |instance: GatewayInstance| {
        let ending = move || bowline_link::end_instances(&[instance]);
        tokio::task::spawn_blocking(ending)
    };
    let ended = end(ours.clone()).await.unwrap();
    assert!(ended.found >= 4, "{ended:?}");
    assert_eq!(ended.left, 0);
    let (_, link, pids) = &scenes[1];
    assert!(link.is_open());
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    for pid in &scenes[0].2 {
        wait_gone(*pid).await;
    }
    assert_eq!(end(ours).await.unwrap().found, 0);
    assert_eq!(end(theirs).await.unwrap().left, 0);
    for pid in &scenes[1].2 {
        wait_gone(*pid).await;
    }
}

#[tokio::test]
async fn server_has_no_new_privileges_and_oom_score() {
    let script = r"grep NoNewPrivs /proc/$$/status >&2; ulimit -c >&2; ulimit -Hc >&2
        while read -r score </proc/$$/oom_score_adj; [ $score -lt 500 ]; do :; done
        echo $score >&2; read -r end";
    let scene = StdioScene::from_server_script(ReaperMode::Reaper, script);
    let link = scene.connect_link().await;
    assert_eq!(
        scene.wait_lines(4).await,
        ["NoNewPrivs:\t1", "0", "0", "500"]
    );
    link.close().await;
}

/// The gateway is a shell here, and so can be killed.
#[tokio::test]
async fn killed_gateway_leaves_no_process() {
    let server = format!("{DESCENDANTS} echo $$ $PPID >&2; while :; do sleep 1000; done");
    let mut gateway = Command::new("sh")
        .args(["-c", r#""$0" $$ -- sh -c "$1" & wait"#, REAPER, &server])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(gateway.stderr.take().unwrap());
    let mut pids = Vec::new();
    for line in stderr.lines().take(4) {
        pids.extend(line.unwrap().split(' ').map(parse_pid));
    }
    assert_eq!(pids.len(), 5, "server, reaper and three descendants");
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    for pid in pids {
        wait_gone(pid).await;
    }
}

#[test]
fn reaper_without_parent_starts_nothing() {
    let output = Command::new(REAPER)
        .args(["1", "--", "echo", "started"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(output.stdout, b"");
}

#[test]
fn reaper_returns_exit_of_program() {
    let me = std::process::id().to_string();
    for (script, code, said) in [
        ("exit 0", 0, ""),
        ("exit 200", 200, ""),
        ("kill -TERM $$", 143, ""),
        ("echo out", 0, "out\n"),
    ] {
        let output = Command::new(REAPER)
            .args([&me, "--", "sh", "-c", script])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), said);
    }
    for args in [&[][..], &["x"], &[&me], &[&me, "--"], &[&me, "sh", "-c"]] {
        let output = Command::new(REAPER).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let output = Command::new(REAPER)
        .args([&me, "--", "/etc"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(126));
}
