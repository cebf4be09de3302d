//! A server that uses too much is ended, with all it started, and said to be.

use bowline_link::Exit;

use super::*;

const MIB: u64 = 1024 * 1024;

fn limited(script: &str, limits: ChildLimits) -> Scene {
    let mut scene = Scene::server(Behind::Reaper, script);
    scene.spec.child_limits = limits;
    scene
}

#[tokio::test]
async fn too_much_memory_of_a_descendant_ends_the_server() {
    // What has no line end is held whole.
    let script = r"sleep 1000 & echo $! >&2; head -c 300000000 /dev/zero | tail; read -r end";
    let bytes_max = 100 * MIB;
    let limits = ChildLimits {
        memory_bytes_max: Some(bytes_max),
        ..ChildLimits::default()
    };
    let scene = limited(script, limits);
    let link = scene.link().await;
    let bystander = pid(&scene.lines(1).await[0]);
    let exit = link.closed().await;
    assert_eq!(exit, Exit::OverMemory { bytes_max });
    assert_eq!(exit.to_string(), "it used more than 100 MiB of memory");
    gone(bystander).await;
}

#[tokio::test]
async fn too_many_processes_end_the_server_whatever_session_they_are_in() {
    let script = r"i=0; while [ $i -lt 300 ]; do setsid sleep 1000 & i=$((i+1)); done; read -r end";
    let limits = ChildLimits {
        processes_max: Some(50),
        ..ChildLimits::default()
    };
    let scene = limited(script, limits);
    let link = scene.link().await;
    let tree = link.processes().unwrap();
    let exit = link.closed().await;
    assert_eq!(exit, Exit::OverProcesses { processes_max: 50 });
    assert_eq!(exit.to_string(), "it had more than 50 processes");
    assert_eq!(tree.usage().processes, 0, "some are left");
}

#[tokio::test]
async fn a_file_larger_than_allowed_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("full");
    let of = file.display();
    let script = format!("exec dd if=/dev/zero of={of} bs=1000000 count=40");
    let limits = ChildLimits {
        file_bytes_max: Some(10 * MIB),
        ..ChildLimits::default()
    };
    let link = limited(&script, limits).link().await;
    let exit = link.closed().await;
    assert_eq!(exit, Exit::Signal(25));
    let text = "it wrote a larger file than it may (signal 25)";
    assert_eq!(exit.to_string(), text);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 10 * MIB);
}

#[tokio::test]
async fn a_server_has_few_files_and_yields_to_others() {
    let script = r#"ulimit -Sn >&2; ulimit -f >&2
        while now=$(nice); [ $((now - NICE)) -lt 5 ]; do :; done; echo up 5 >&2; read -r end"#;
    let mut scene = Scene::server(Behind::Reaper, script);
    let own = rustix::process::getpriority_process(None).unwrap();
    scene.spec.env.push(("NICE".into(), own.to_string().into()));
    let link = scene.link().await;
    // Shells count files in blocks of 512 bytes.
    assert_eq!(scene.lines(3).await, ["1024", "2097152", "up 5"]);
    link.close().await;
}

#[tokio::test]
async fn a_server_cannot_pretend_that_it_was_ended() {
    let limits = ChildLimits {
        memory_bytes_max: Some(1024 * MIB),
        ..ChildLimits::default()
    };
    for code in [118, 119] {
        let link = limited(&format!("exit {code}"), limits).link().await;
        assert_eq!(link.closed().await, Exit::Status(125));
    }
}

#[tokio::test]
async fn memory_is_that_of_the_whole_tree_and_not_of_the_reaper() {
    let script = r"head -c 50000000 /dev/zero | (tail; :) & echo up >&2; read -r end";
    let scene = Scene::server(Behind::Reaper, script);
    let link = scene.link().await;
    scene.lines(1).await;
    let tree = link.processes().unwrap();
    let peak = async {
        loop {
            let usage = tree.usage();
            if usage.memory_bytes > 40 * MIB && usage.processes >= 3 {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(20), peak).await;
    seen.expect("the memory of a descendant is seen");
    link.close().await;
}
