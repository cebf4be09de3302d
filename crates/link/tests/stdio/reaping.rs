//! Nothing that a server started is left behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use bowline_link::{Exit, Instance};
use rustix::process::{Signal, kill_process};

use super::*;

const REAPER: &str = env!("CARGO_BIN_EXE_reaper-probe");

/// Three descendants that none of the usual ways reach: in a session of their own, without a
/// parent, deaf to SIGTERM. Each tells its number.
const DESCENDANTS: &str = r#"
trap '' TERM
setsid sh -c 'echo $$ >&2; exec sleep 1000' &
(setsid sh -c 'echo $$ >&2; exec sleep 1000' &)
sh -c 'echo $$ >&2; exec sleep 1000' &
"#;

async fn descendants(scene: &Scene) -> Vec<Pid> {
    scene.lines(3).await.iter().map(|line| pid(line)).collect()
}

#[tokio::test]
async fn a_stopped_server_leaves_no_descendant() {
    let scene = Scene::server(
        Behind::Reaper,
        &format!("{DESCENDANTS} exec cat >/dev/null"),
    );
    let link = scene.link().await;
    let descendants = descendants(&scene).await;
    assert_eq!(link.close().await, Exit::Status(0));
    for pid in descendants {
        gone(pid).await;
    }
}

#[tokio::test]
async fn a_crashed_server_leaves_no_descendant() {
    let script = format!("{DESCENDANTS} read -r call; kill -KILL $$");
    let scene = Scene::server(Behind::Reaper, &script);
    let link = scene.link().await;
    let descendants = descendants(&scene).await;
    let error = call(&*link).await.unwrap_err();
    assert_eq!(error, LinkError::Lost(Exit::Signal(9)));
    for pid in descendants {
        gone(pid).await;
    }
}

#[tokio::test]
async fn the_server_is_reported_and_not_the_reaper_and_dies_with_it() {
    let script = "echo $$ $PPID >&2; trap '' TERM; while :; do sleep 1000; done";
    let scene = Scene::server(Behind::Reaper, script);
    let link = scene.link().await;
    let line = scene.lines(1).await.remove(0);
    let (server, reaper) = line.split_once(' ').unwrap();
    assert_eq!(link.pid(), Some(server.parse().unwrap()));
    kill_process(pid(reaper), Signal::KILL).unwrap();
    assert_eq!(link.closed().await, Exit::Signal(9));
    gone(pid(server)).await;
}

#[tokio::test]
async fn killed_reaper_leaves_no_descendant() {
    let script = format!("{DESCENDANTS} echo $PPID >&2; while :; do sleep 1000; done");
    let scene = Scene::server(Behind::Reaper, &script);
    let link = scene.link().await;
    let mut pids: Vec<Pid> = scene.lines(4).await.iter().map(|line| pid(line)).collect();
    let parents = pids
        .iter()
        .position(|one| is_parent_of(*one, link.pid().unwrap()));
    let reaper = pids.remove(parents.expect("the reaper is among them"));
    kill_process(reaper, Signal::KILL).unwrap();
    assert_eq!(link.closed().await, Exit::Signal(9));
    for pid in pids {
        gone(pid).await;
    }
}

fn is_parent_of(parent: Pid, child: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    status.contains(&format!("\nPPid:\t{}\n", parent.as_raw_pid()))
}

#[tokio::test]
async fn ended_instance_leaves_no_process_of_others() {
    let (ours, theirs) = (Instance::new().unwrap(), Instance::new().unwrap());
    let mut scenes = Vec::new();
    for instance in [&ours, &theirs] {
        let script = format!("{DESCENDANTS} while :; do sleep 1000; done");
        let mut scene = Scene::server(Behind::Nothing, &script);
        scene.spec.instance = Some(instance.clone());
        let link = scene.link().await;
        let pids = descendants(&scene).await;
        scenes.push((scene, link, pids));
    }
    let end = |instance: Instance| {
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
        gone(*pid).await;
    }
    assert_eq!(end(ours).await.unwrap().found, 0);
    assert_eq!(end(theirs).await.unwrap().left, 0);
    for pid in &scenes[1].2 {
        gone(*pid).await;
    }
}

fn is_alive(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid).is_ok()
}

#[tokio::test]
async fn a_server_cannot_gain_privileges_and_is_the_first_to_go_without_memory() {
    let script = r"grep NoNewPrivs /proc/$$/status >&2; ulimit -c >&2; ulimit -Hc >&2
        while read -r score </proc/$$/oom_score_adj; [ $score -lt 500 ]; do :; done
        echo $score >&2; read -r end";
    let scene = Scene::server(Behind::Reaper, script);
    let link = scene.link().await;
    assert_eq!(scene.lines(4).await, ["NoNewPrivs:\t1", "0", "0", "500"]);
    link.close().await;
}

/// The gateway is a shell here, so that it can be killed.
#[tokio::test]
async fn a_killed_gateway_leaves_no_process() {
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
        pids.extend(line.unwrap().split(' ').map(pid));
    }
    assert_eq!(pids.len(), 5, "server, reaper and three descendants");
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    for pid in pids {
        gone(pid).await;
    }
}

#[test]
fn a_reaper_whose_parent_is_gone_starts_nothing() {
    let output = Command::new(REAPER)
        .args(["1", "--", "echo", "started"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(output.stdout, b"");
}

#[test]
fn a_reaper_passes_on_how_its_program_ended() {
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
