//! Two network namespaces, joined by one cable on which only answers of the gateway get in.

use std::{fmt, net::Ipv4Addr, path::Path, process::Command};

use anyhow::{Result, bail};

use crate::process;

/// Begins the names of our namespaces; the process id of their maker follows, and the side.
const PREFIX: &str = "bowline-apart-";

/// Where the gateway listens for the executor: its network is its own, so is every port.
const PORT: u16 = 7_400;

/// The two ends of the cable on the link layer. Nobody can be asked for them: a question would
/// have to get in.
const HARDWARE: [&str; 2] = ["02:00:00:00:0b:01", "02:00:00:00:0b:02"];

/// Gone when dropped.
#[derive(Debug)]
pub(super) struct Walls {
    names: [String; 2],
    ends: [String; 2],
    addresses: [Ipv4Addr; 2],
}

impl Walls {
    /// Puts them up, and sees that they hold.
    pub(super) fn put_up(root: &Path) -> Result<Self> {
        if process::output(root, "id", &["-u"])?.trim() != "0" {
            bail!("network namespaces are root's");
        }
        sweep();
        let pid = std::process::id();
        let low = u8::try_from(pid % 64)? * 4;
        let high = u8::try_from((pid / 64) % 256)?;
        let this = Self {
            names: ["near", "far"].map(|side| format!("{PREFIX}{pid}-{side}")),
            ends: ["n", "f"].map(|side| format!("bwa{pid}{side}")),
            addresses: [1, 2].map(|host| Ipv4Addr::new(10, 214, high, low + host)),
        };
        // From here on dropping undoes whatever was done.
        for name in &this.names {
            ip(&["netns", "add", name])?;
        }
        this.lay_cable()?;
        this.shut()?;
        Ok(this)
    }

    fn lay_cable(&self) -> Result<()> {
        let ([near, far], [here, there]) = (&self.names, &self.ends);
        ip(&[
            "-n",
            near,
            "link",
            "add",
            here,
            "address",
            HARDWARE[0],
            "type",
            "veth",
            "peer",
            "name",
            there,
            "address",
            HARDWARE[1],
            "netns",
            far,
        ])?;
        let [hub, office] = self.addresses.map(|address| address.to_string());
        let sides = [
            (near, here, &hub, &office, HARDWARE[1]),
            (far, there, &office, &hub, HARDWARE[0]),
        ];
        for (name, end, own, other, hardware) in sides {
            ip(&["-n", name, "addr", "add", &format!("{own}/30"), "dev", end])?;
            ip(&["-n", name, "link", "set", end, "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&[
                "-n",
                name,
                "neigh",
                "replace",
                other,
                "lladdr",
                hardware,
                "nud",
                "permanent",
                "dev",
                end,
            ])?;
        }
        Ok(())
    }

    /// What comes in at the far end of the cable is lost, unless it is of the gateway's port.
    fn shut(&self) -> Result<()> {
        let (far, end, port) = (&self.names[1], &self.ends[1], PORT.to_string());
        let rule = |words: &[&str]| ip(&[&["-n", far.as_str(), "rule"], words].concat());
        // The rule that finds local addresses stands before all others, and must not.
        rule(&["add", "pref", "10", "lookup", "local"])?;
        rule(&["del", "pref", "0"])?;
        rule(&[
            "add", "pref", "1", "iif", end, "ipproto", "tcp", "sport", &port, "lookup", "local",
        ])?;
        rule(&["add", "pref", "2", "iif", end, "blackhole"])
    }

    /// A program on the gateway's side.
    pub(super) fn near(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0]]).arg(program);
        command
    }

    /// What the test must know: the far namespace, the gateway's address on the cable, and the
    /// address at the other end, behind which everything is out of reach.
    pub(super) fn told(&self) -> String {
        let [near, far] = self.addresses;
        format!("{},{near}:{PORT},{far}", self.names[1])
    }
}

impl fmt::Display for Walls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [near, far] = self.addresses;
        write!(
            f,
            "gateway and clients at {near}, executor and servers at {far}"
        )
    }
}

impl Drop for Walls {
    fn drop(&mut self) {
        // The cable goes with its ends; each may not have been made.
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Takes away what runs left behind that were killed.
fn sweep() {
    let listed = process::quiet(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    for name in names {
        let rest = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'));
        if let Some((pid, _)) = rest
            && !Path::new("/proc").join(pid).exists()
        {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    process::quiet(Command::new("ip").args(words)).map(drop)
}
