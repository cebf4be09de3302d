//! `bowline up` in a real terminal: it ends with the terminal, unless it was detached.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Http, bowline, eventually, fixture, lives, signal};

/// A terminal of its own, and a gateway that was started in it.
#[derive(Debug)]
struct Terminal {
    /// Holds the other end of the terminal; its end is the end of the terminal.
    holder: Child,
    ready: Value,
    dir: TempDir,
}

impl Terminal {
    /// Types a command that begins with `before`, and waits until the gateway serves.
    fn type_up(before: &str, args: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("bowline.toml"), fixture("one", &[])).unwrap();
        let line = format!(
            "{before} {} up --json --listen 127.0.0.1:0 --config {} --state {} {args}",
            bowline().display(),
            path("bowline.toml"),
            path("state"),
        );
        let mut holder = Command::new("script")
            .args(["-q", "-c", &line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let shown = BufReader::new(holder.stdout.take().unwrap());
        let ready = shown
            .lines()
            .map_while(Result::ok)
            .find_map(|line| serde_json::from_str::<Value>(line.trim()).ok())
            .unwrap();
        assert_eq!(ready["event"], "ready", "{ready}");
        Self { holder, ready, dir }
    }

    fn pid(&self) -> u32 {
        u32::try_from(self.ready["pid"].as_u64().unwrap()).unwrap()
    }

    /// What the gateway says of its servers.
    fn servers(&self) -> Vec<Value> {
        let address = self.ready["mcp"].as_str().unwrap();
        let address = address.trim_start_matches("http://");
        let address = address.trim_end_matches("/mcp").parse().unwrap();
        let token = std::fs::read_to_string(self.ready["token_file"].as_str().unwrap());
        let bearer = format!("Bearer {}", token.unwrap().trim());
        let answer = Http::connect(address).get("/api/v1/servers", &[("Authorization", &bearer)]);
        answer.json()["servers"].as_array().unwrap().clone()
    }

    /// The process of the first server, once there is one.
    fn server_pid(&self) -> u32 {
        let mut pid = None;
        eventually("the server runs", || {
            pid = self.servers()[0]["pid"].as_u64();
            pid.is_some()
        });
        u32::try_from(pid.unwrap()).unwrap()
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.dir.path()).join(name)
    }

    /// Closes the window, as it were.
    fn close(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        if lives(self.pid()) {
            signal(self.pid(), "TERM");
            eventually("the gateway is gone", || !lives(self.pid()));
        }
    }
}

#[test]
fn up_ends_with_its_terminal_and_reloads_before() {
    let mut terminal = Terminal::type_up("exec", "");
    let (gateway, server) = (terminal.pid(), terminal.server_pid());
    let both = [fixture("one", &[]), fixture("two", &[])].concat();
    std::fs::write(terminal.file("bowline.toml"), both).unwrap();
    signal(gateway, "HUP");
    eventually("the file is applied", || terminal.servers().len() == 2);
    assert!(lives(gateway) && lives(server));
    terminal.close();
    eventually("the gateway is gone", || !lives(gateway));
    eventually("its server is gone", || !lives(server));
    // It ended in order: nothing says that it still runs.
    assert!(!terminal.file("state/run.json").exists());
}

#[test]
fn detached_up_outlives_its_terminal() {
    for (before, args) in [
        ("", "--detach"),
        ("nohup", "2>&1 | cat"),
        ("exec setsid -w", ""),
    ] {
        let mut terminal = Terminal::type_up(before, args);
        let server = terminal.server_pid();
        terminal.close();
        // A hangup on top of it is a wish to read the file again, and nothing else.
        let both = [fixture("one", &[]), fixture("two", &[])].concat();
        std::fs::write(terminal.file("bowline.toml"), both).unwrap();
        signal(terminal.pid(), "HUP");
        eventually("the file is applied", || terminal.servers().len() == 2);
        assert!(lives(server), "{before} {args}");
    }
}
