//! The fixture as a server of its own, over HTTP.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::{bowline, signal};

/// A fixture that serves over HTTP in its own process until it is dropped.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    args: Vec<String>,
    pub(crate) url: String,
}

impl Served {
    /// Starts one with these arguments besides the address.
    pub(crate) fn start(args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self::at("127.0.0.1:0", args)
    }

    fn at(address: &str, args: Vec<String>) -> Self {
        let mut child = Command::new(bowline())
            .args(["fixture", "--http", address])
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

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        let rest = self.url.strip_prefix("http://").unwrap();
        rest.split('/').next().unwrap().parse().unwrap()
    }

    /// Kills it as the kernel would, without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another one in its place, at the same address.
    pub(crate) fn restart(&mut self) {
        let address = self.address().to_string();
        let args = self.args.clone();
        *self = Self::at(&address, args);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it in order and returns whether it exited well.
    pub(crate) fn stop(&mut self) -> bool {
        signal(self.pid(), "TERM");
        self.ended_well()
    }

    /// Waits for its end and returns whether it exited well.
    pub(crate) fn ended_well(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
