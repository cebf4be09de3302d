//! Five official servers with test data, and calls with stable results.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use bowline_testkit::gateway::{Gateway, server_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::PeerManifest;

/// The servers, in call order.
pub(crate) const NAMES: [&str; 5] = ["everything", "filesystem", "memory", "time", "git"];

/// The start command of a server.
#[derive(Debug, Clone)]
pub(crate) struct ServerProgram {
    pub(crate) command: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(&'static str, PathBuf)>,
}

impl ServerProgram {
    pub(crate) fn to_command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.args(&self.args).envs(self.env.iter().cloned());
        command
    }

    pub(crate) fn env_json(&self) -> Value {
        self.env
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect()
    }
}

/// A tool call, by the server's own tool name.
pub(crate) type ToolCallSpec = (&'static str, Value);

/// The test data of the servers.
#[derive(Debug)]
pub(crate) struct OfficialServers {
    dir: TempDir,
    pub(crate) peers: PeerManifest,
}

impl OfficialServers {
    pub(crate) fn new(peers: PeerManifest) -> Self {
        let dir = TempDir::new().unwrap();
        let this = Self { dir, peers };
        let files = this.files_dir();
        std::fs::create_dir_all(files.join("below")).unwrap();
        std::fs::write(files.join("poem.txt"), "eins\nzwei – drei\n\u{1f9f6}\n").unwrap();
        std::fs::write(files.join("still.txt"), "never read\n").unwrap();
        std::fs::write(files.join("below/dot.gif"), b"GIF89a\x01\x00\x01\x00").unwrap();
        this.run_git(&["init", "--quiet", "--initial-branch", "main"]);
        this.run_git(&["add", "."]);
        this.run_git(&["commit", "--quiet", "--message", "Begin"]);
        std::fs::write(this.repository_dir().join("b"), "not yet added\n").unwrap();
        this
    }

    pub(crate) fn base_dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn files_dir(&self) -> PathBuf {
        self.base_dir().join("files")
    }

    pub(crate) fn repository_dir(&self) -> PathBuf {
        self.base_dir().join("repository")
    }

    fn run_git(&self, args: &[&str]) {
        let repository = self.repository_dir();
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

    /// The start command of a server, with separate stored data for each `who`.
    pub(crate) fn server_program(&self, name: &str, who: &str) -> ServerProgram {
        let peer = self.peers.peer_path(&format!("/servers/{name}"));
        let script = |more: &[&Path]| {
            let args = [&[peer][..], more].concat();
            let args = args.iter().map(|arg| arg.to_str().unwrap().to_owned());
            (self.peers.peer_path("/node").to_owned(), args.collect())
        };
        let own = |args: &[&str]| {
            let args = args.iter().map(|arg| (*arg).to_owned()).collect();
            (peer.to_owned(), args)
        };
        let (command, args) = match name {
            "filesystem" => script(&[&self.files_dir()]),
            "time" => own(&["--local-timezone", "Etc/UTC"]),
            "git" => own(&[]),
            _ => script(&[]),
        };
        let memory = self.base_dir().join(format!("memory-{who}.jsonl"));
        let env = if name == "memory" {
            vec![("MEMORY_FILE_PATH", memory)]
        } else {
            Vec::new()
        };
        ServerProgram { command, args, env }
    }

    /// Starts a gateway in front of all servers and waits until all their tools are listed.
    pub(crate) fn start_gateway(&self) -> Gateway {
        let mut config = String::new();
        for name in NAMES {
            let program = self.server_program(name, "gateway");
            let args: Vec<_> = program.args.iter().map(String::as_str).collect();
            config += &server_config(name, &program.command, &args);
            if name == "git" {
                // Calls name the repository as an argument; the sandbox must allow reading it.
                config += &format!("fs = [{}]\n", json!(self.base_dir()));
            }
            for (key, value) in &program.env {
                config += &format!("env = {{ {key} = {} }}\n", json!(value));
            }
        }
        let gateway = Gateway::start(&config);
        for name in NAMES {
            gateway.wait_for_state(name, "ready");
        }
        // This server adds a tool after the handshake, with a notification.
        wait_until("everything offers all its tools", || {
            let tools = gateway.get_api("/api/v1/tools?server=everything");
            tools.to_string().contains("simulate-research-query")
        });
        gateway
    }

    /// Calls with the same result at every repetition, separate for each `who`.
    pub(crate) fn stable_calls(&self, name: &str, who: &str) -> Vec<ToolCallSpec> {
        match name {
            "everything" => everything_calls(),
            "filesystem" => self.file_calls(),
            "memory" => memory_calls(who),
            "time" => vec![(
                "convert_time",
                json!({
                    "source_timezone": stable_time_zone(),
                    "time": "12:34",
                    "target_timezone": "Asia/Kolkata",
                }),
            )],
            "git" => self.repository_calls(),
            _ => panic!("no calls of {name}"),
        }
    }

    fn file_calls(&self) -> Vec<ToolCallSpec> {
        let at = |name: &str| json!({"path": self.files_dir().join(name)});
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

    fn repository_calls(&self) -> Vec<ToolCallSpec> {
        let path = self.repository_dir();
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

fn everything_calls() -> Vec<ToolCallSpec> {
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

fn memory_calls(who: &str) -> Vec<ToolCallSpec> {
    let entity = json!({"name": who, "entityType": "knot", "observations": ["holds", "slips"]});
    vec![
        ("create_entities", json!({"entities": [entity]})),
        ("create_entities", json!({"entities": [entity]})),
        ("open_nodes", json!({"names": [who]})),
        ("search_nodes", json!({"query": who})),
        ("delete_entities", json!({"entityNames": [who]})),
    ]
}

/// Returns a time zone in which the day does not change during a test.
fn stable_time_zone() -> &'static str {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    if seconds.as_secs() / 3600 % 24 == 23 {
        "Asia/Tokyo"
    } else {
        "Etc/UTC"
    }
}

/// Tools of `everything` for clients with capabilities only. The gateway declares all capabilities;
/// most clients here do not.
pub(crate) const CAPABILITY_TOOLS: [&str; 4] = [
    "get-roots-list",
    "trigger-elicitation-request",
    "trigger-sampling-request",
    "trigger-url-elicitation",
];

/// Removes the capability tools from a list and returns the count.
pub(crate) fn remove_asking_tools(tools: &mut Value) -> usize {
    let tools = tools.as_array_mut().unwrap();
    let before = tools.len();
    tools.retain(|tool| !CAPABILITY_TOOLS.contains(&tool["name"].as_str().unwrap()));
    before - tools.len()
}
