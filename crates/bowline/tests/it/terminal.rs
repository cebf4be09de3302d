//! `bowline up` in a real terminal: it ends with the terminal, unless detached.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bowline_testkit::gateway::{HttpConnection, bowline_binary, fixture_config};
use bowline_testkit::{is_alive, send_signal, wait_process_exit, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// A pseudo-terminal with a running gateway.
#[derive(Debug)]
struct Terminal {
    /// Holds the far end of the terminal; a kill closes the terminal.
    holder: Child,
    ready: Value,
    dir: TempDir,
}

impl Terminal {
    /// Runs a command that begins with `before`, and waits until the gateway serves.
    fn run_up(before: &str, args: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("bowline.toml"), fixture_config("one", &[])).unwrap();
        let line = format!(
            "{before} {} up --json --listen 127.0.0.1:0 --config {} --state {} {args}",
            bowline_binary().display(),
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

    /// The servers in the gateway's status.
    fn list_servers(&self) -> Vec<Value> {
        let address = self.ready["mcp"].as_str().unwrap();
        let address = address.trim_start_matches("http://");
        let address = address.trim_end_matches("/mcp").parse().unwrap();
        let token = std::fs::read_to_string(self.ready["token_file"].as_str().unwrap());
        let bearer = format!("Bearer {}", token.unwrap().trim());
        let answer =
            HttpConnection::connect(address).get("/api/v1/servers", &[("Authorization", &bearer)]);
        answer.json()["servers"].as_array().unwrap().clone()
    }

    /// The process of the first server, once running.
    fn server_pid(&self) -> u32 {
        let mut pid = None;
        wait_until("the server runs", || {
            pid = self.list_servers()[0]["pid"].as_u64();
            pid.is_some()
        });
        u32::try_from(pid.unwrap()).unwrap()
    }

    fn file_path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.dir.path()).join(name)
    }

    /// Closes the terminal.
    fn close_terminal(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        if is_alive(self.pid()) {
            send_signal(self.pid(), "TERM");
            wait_process_exit("the end of the gateway", self.pid());
        }
    }
}

#[test]
fn up_reloads_and_ends_with_terminal() {
    let mut terminal = Terminal::run_up("exec", "");
    let (gateway, server) = (terminal.pid(), terminal.server_pid());
    let both = [fixture_config("one", &[]), fixture_config("two", &[])].concat();
    std::fs::write(terminal.file_path("bowline.toml"), both).unwrap();
    send_signal(gateway, "HUP");
    wait_until("the file is applied", || terminal.list_servers().len() == 2);
    assert!(is_alive(gateway) && is_alive(server));
    terminal.close_terminal();
    wait_process_exit("the end of the gateway", gateway);
    wait_process_exit("the end of its server", server);
    // The gateway ended in order: its `run.json` is gone.
    assert!(!terminal.file_path("state/run.json").exists());
}

#[test]
fn detached_up_outlives_its_terminal() {
    for (before, args) in [
        ("", "--detach"),
        ("nohup", "2>&1 | cat"),
        ("exec setsid -w", ""),
    ] {
        let mut terminal = Terminal::run_up(before, args);
        let server = terminal.server_pid();
        terminal.close_terminal();
        // A further SIGHUP only reloads the file.
        let both = [fixture_config("one", &[]), fixture_config("two", &[])].concat();
        std::fs::write(terminal.file_path("bowline.toml"), both).unwrap();
        send_signal(terminal.pid(), "HUP");
        wait_until("the file is applied", || terminal.list_servers().len() == 2);
        assert!(is_alive(server), "{before} {args}");
    }
}
