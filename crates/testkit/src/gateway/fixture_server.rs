//! The fixture as an HTTP server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::fixture_binary;
use crate::send_signal;

/// An HTTP fixture in a separate process; ends when dropped.
#[derive(Debug)]
pub struct FixtureServer {
    child: Child,
    args: Vec<String>,
    pub url: String,
}

impl FixtureServer {
    /// Starts a fixture with the given extra arguments.
    pub fn start(args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self::start_at("127.0.0.1:0", args)
    }

    fn start_at(address: &str, args: Vec<String>) -> Self {
        let mut child = Command::new(fixture_binary())
            .args(["--http", address])
            .args(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut url)
            .unwrap();
        let url = url.trim_end().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "no URL: {url:?}");
        Self { child, args, url }
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        let rest = self.url.strip_prefix("http://").unwrap();
        rest.split('/').next().unwrap().parse().unwrap()
    }

    /// Kills the fixture with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another fixture at the same address.
    pub fn restart(&mut self) {
        let address = self.address().to_string();
        let args = self.args.clone();
        *self = Self::start_at(&address, args);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops the fixture in order and returns whether it exited with success.
    pub fn stop(&mut self) -> bool {
        send_signal(self.pid(), "TERM");
        self.wait_for_success()
    }

    /// Waits for the exit and returns whether it was a success.
    pub fn wait_for_success(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for FixtureServer {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
