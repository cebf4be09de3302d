//! Five official servers with something to work on, and calls whose results do not change.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Peers;
use crate::harness::{Gateway, eventually, server};

/// The servers, in the order in which they are called.
pub(crate) const NAMES: [&str; 5] = ["everything", "filesystem", "memory", "time", "git"];

/// How to start a server.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) command: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(&'static str, PathBuf)>,
}

impl Program {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.args(&self.args).envs(self.env.iter().cloned());
        command
    }

    pub(crate) fn env(&self) -> Value {
        self.env
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect()
    }
}

/// A call of a tool, by the server's own name of it.
pub(crate) type Call = (&'static str, Value);

/// What the servers work on.
#[derive(Debug)]
pub(crate) struct World {
    dir: TempDir,
    pub(crate) peers: Peers,
}

impl World {
    pub(crate) fn new(peers: Peers) -> Self {
        let dir = TempDir::new().unwrap();
        let this = Self { dir, peers };
        let files = this.files();
        std::fs::create_dir_all(files.join("below")).unwrap();
        std::fs::write(files.join("poem.txt"), "eins\nzwei – drei\n\u{1f9f6}\n").unwrap();
        std::fs::write(files.join("still.txt"), "never read\n").unwrap();
        std::fs::write(files.join("below/dot.gif"), b"GIF89a\x01\x00\x01\x00").unwrap();
        this.git(&["init", "--quiet", "--initial-branch", "main"]);
        this.git(&["add", "."]);
        this.git(&["commit", "--quiet", "--message", "Begin"]);
        std::fs::write(this.repository().join("b"), "not yet added\n").unwrap();
        this
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.path().join("files")
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.path().join("repository")
    }

    fn git(&self, args: &[&str]) {
        let repository = self.repository();
        if !repository.exists() {
            std::fs::create_dir(&repository).unwrap();
            std::fs::write(repository.join("a"), "one\ntwo\n").unwrap();
        }
        let status = Command::new("git")
            .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com"])
            .args(["-c", "commit.gpgsign=false"])
            .args(args)
            .current_dir(&repository)
            .status()
            .unwrap();
        assert!(status.success(), "git {args:?}");
    }

    /// How to start a server; what it remembers is kept apart under `who`.
    pub(crate) fn program(&self, name: &str, who: &str) -> Program {
        let peer = self.peers.path(&format!("/servers/{name}"));
        let script = |more: &[&Path]| {
            let args = [&[peer][..], more].concat();
            let args = args.iter().map(|arg| arg.to_str().unwrap().to_owned());
            (self.peers.path("/node").to_owned(), args.collect())
        };
        let own = |args: &[&str]| {
            let args = args.iter().map(|arg| (*arg).to_owned()).collect();
            (peer.to_owned(), args)
        };
        let (command, args) = match name {
            "filesystem" => script(&[&self.files()]),
            "time" => own(&["--local-timezone", "Etc/UTC"]),
            "git" => own(&[]),
            _ => script(&[]),
        };
        let memory = self.path().join(format!("memory-{who}.jsonl"));
        let env = if name == "memory" {
            vec![("MEMORY_FILE_PATH", memory)]
        } else {
            Vec::new()
        };
        Program { command, args, env }
    }

    /// Starts a gateway in front of all servers and waits until it knows all their tools.
    pub(crate) fn gateway(&self) -> Gateway {
        let mut config = String::new();
        for name in NAMES {
            let program = self.program(name, "gateway");
            let args: Vec<_> = program.args.iter().map(String::as_str).collect();
            config += &server(name, &program.command, &args);
            if name == "git" {
                // Which repository is meant, calls say; the sandbox must let it be read.
                config += &format!("fs = [{}]\n", json!(self.path()));
            }
            for (key, value) in &program.env {
                config += &format!("env = {{ {key} = {} }}\n", json!(value));
            }
        }
        let gateway = Gateway::up(&config);
        for name in NAMES {
            gateway.wait_for(name, "ready");
        }
        // This server adds a tool after the handshake, and says so.
        eventually("everything offers all its tools", || {
            let tools = gateway.api("/api/v1/tools?server=everything");
            tools.to_string().contains("simulate-research-query")
        });
        gateway
    }

    /// Calls that give the same result however often they are made, alone under `who`.
    pub(crate) fn calls(&self, name: &str, who: &str) -> Vec<Call> {
        match name {
            "everything" => everything(),
            "filesystem" => self.on_files(),
            "memory" => memory(who),
            "time" => vec![(
                "convert_time",
                json!({
                    "source_timezone": quiet_zone(),
                    "time": "12:34",
                    "target_timezone": "Asia/Kolkata",
                }),
            )],
            "git" => self.on_repository(),
            _ => panic!("no calls of {name}"),
        }
    }

    fn on_files(&self) -> Vec<Call> {
        let at = |name: &str| json!({"path": self.files().join(name)});
        vec![
            ("read_text_file", at("poem.txt")),
            ("read_text_file", at("missing.txt")),
            ("read_media_file", at("below/dot.gif")),
            ("list_directory", at("")),
            ("directory_tree", at("")),
            ("get_file_info", at("still.txt")),
            ("list_allowed_directories", json!({})),
        ]
    }

    fn on_repository(&self) -> Vec<Call> {
        let path = self.repository();
        vec![
            ("git_status", json!({"repo_path": path})),
            ("git_log", json!({"repo_path": path, "max_count": 3})),
            ("git_show", json!({"repo_path": path, "revision": "HEAD"})),
            (
                "git_branch",
                json!({"repo_path": path, "branch_type": "local"}),
            ),
        ]
    }
}

fn everything() -> Vec<Call> {
    vec![
        (
            "echo",
            json!({"message": "\u{1f9f6} \"quoted\" \\ \u{0} line\nline"}),
        ),
        ("get-sum", json!({"a": 2, "b": 40.5})),
        ("get-structured-content", json!({"location": "Chicago"})),
        (
            "get-annotated-message",
            json!({"messageType": "error", "includeImage": true}),
        ),
        ("get-tiny-image", json!({})),
        ("get-resource-links", json!({"count": 2})),
        (
            "trigger-long-running-operation",
            json!({"duration": 0.2, "steps": 2}),
        ),
    ]
}

fn memory(who: &str) -> Vec<Call> {
    let entity = json!({"name": who, "entityType": "knot", "observations": ["holds", "slips"]});
    vec![
        ("create_entities", json!({"entities": [entity]})),
        ("create_entities", json!({"entities": [entity]})),
        ("open_nodes", json!({"names": [who]})),
        ("search_nodes", json!({"query": who})),
        ("delete_entities", json!({"entityNames": [who]})),
    ]
}

/// Returns a time zone in which the day does not change while a test runs.
fn quiet_zone() -> &'static str {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    if seconds.as_secs() / 3600 % 24 == 23 {
        "Asia/Tokyo"
    } else {
        "Etc/UTC"
    }
}

/// Tools that `everything` offers only to clients that can be asked for something. The gateway
/// can, since any client may come; most clients here cannot.
pub(crate) const ASKING: [&str; 4] = [
    "get-roots-list",
    "trigger-elicitation-request",
    "trigger-sampling-request",
    "trigger-url-elicitation",
];

/// Takes those out of a list of tools and says how many they were.
pub(crate) fn take_asking(tools: &mut Value) -> usize {
    let tools = tools.as_array_mut().unwrap();
    let before = tools.len();
    tools.retain(|tool| !ASKING.contains(&tool["name"].as_str().unwrap()));
    before - tools.len()
}
