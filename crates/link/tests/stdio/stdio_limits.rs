//! Resource limits: an excessive server is killed with all descendants, and reported.

use bowline_link::LinkExit;
use bowline_testkit::poll_until;

use super::*;

const MIB: u64 = 1024 * 1024;

fn limited_scene(script: &str, limits: ChildLimits) -> StdioScene {
    let mut scene = StdioScene::from_server_script(ReaperMode::Reaper, script);
    scene.spec.child_limits = limits;
    scene
}

#[tokio::test]
async fn memory_of_descendant_kills_server() {
    // Input without a line end is buffered in memory.
    let script = r"sleep 1000 & echo $! >&2; head -c 300000000 /dev/zero | tail; read -r end";
    let bytes_max = 100 * MIB;
    let limits = ChildLimits {
        memory_bytes_max: Some(bytes_max),
        ..ChildLimits::default()
    };
    let scene = limited_scene(script, limits);
    let link = scene.connect_link().await;
    let bystander = parse_pid(&scene.wait_lines(1).await[0]);
    let exit = link.wait_closed().await;
    assert_eq!(exit, LinkExit::OverMemory { bytes_max });
    assert_eq!(exit.to_string(), "it used more than 100 MiB of memory");
    wait_gone(bystander).await;
}

#[tokio::test]
async fn process_limit_spans_sessions() {
    let script = r"i=0; while [ $i -lt 300 ]; do setsid sleep 1000 & i=$((i+1)); done; read -r end";
    let limits = ChildLimits {
        processes_max: Some(50),
        ..ChildLimits::default()
    };
    let scene = limited_scene(script, limits);
    let link = scene.connect_link().await;
    let tree = link.processes().unwrap();
    let exit = link.wait_closed().await;
    assert_eq!(exit, LinkExit::OverProcesses { processes_max: 50 });
    assert_eq!(exit.to_string(), "it had more than 50 processes");
    assert_eq!(tree.usage().processes, 0, "some are left");
}

#[tokio::test]
async fn file_size_limit_is_enforced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("full");
    let of = file.display();
    let script = format!("exec dd if=/dev/zero of={of} bs=1000000 count=40");
    let limits = ChildLimits {
        file_bytes_max: Some(10 * MIB),
        ..ChildLimits::default()
    };
    let link = limited_scene(&script, limits).connect_link().await;
    let exit = link.wait_closed().await;
    assert_eq!(exit, LinkExit::Signal(25));
    let text = "it wrote a larger file than it may (signal 25)";
    assert_eq!(exit.to_string(), text);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 10 * MIB);
}

#[tokio::test]
async fn server_has_file_limit_and_low_priority() {
    let script = r#"ulimit -Sn >&2; ulimit -f >&2
        while now=$(nice); [ $((now - NICE)) -lt 5 ]; do :; done; echo up 5 >&2; read -r end"#;
    let mut scene = StdioScene::from_server_script(ReaperMode::Reaper, script);
    let own = rustix::process::getpriority_process(None).unwrap();
    scene.spec.env.push(("NICE".into(), own.to_string().into()));
    let link = scene.connect_link().await;
    // Shells count files in blocks of 512 bytes.
    assert_eq!(scene.wait_lines(3).await, ["1024", "2097152", "up 5"]);
    link.close().await;
}

#[tokio::test]
async fn server_cannot_forge_reaper_code() {
    let limits = ChildLimits {
        memory_bytes_max: Some(1024 * MIB),
        ..ChildLimits::default()
    };
    for code in [118, 119] {
        let link = limited_scene(&format!("exit {code}"), limits)
            .connect_link()
            .await;
        assert_eq!(link.wait_closed().await, LinkExit::Status(125));
    }
}

#[tokio::test]
async fn memory_usage_excludes_reaper() {
    let script = r"head -c 50000000 /dev/zero | (tail; :) & echo up >&2; read -r end";
    let scene = StdioScene::from_server_script(ReaperMode::Reaper, script);
    let link = scene.connect_link().await;
    scene.wait_lines(1).await;
    let tree = link.processes().unwrap();
    poll_until("the memory of a descendant is seen", || {
        let usage = tree.usage();
        usage.memory_bytes > 40 * MIB && usage.processes >= 3
    })
    .await;
    link.close().await;
}
