//! Two network namespaces joined by a veth pair; the far side accepts only packets from the
//! gateway's port.

use std::{fmt, net::Ipv4Addr, path::Path, process::Command};

use anyhow::{Result, bail};

use crate::process;

/// Prefix of namespace names; the creator's process id and the side follow.
const NAMESPACE_PREFIX: &str = "bowline-netns-";

/// Port on which the gateway listens for the executor; the namespace has all ports free.
const GATEWAY_PORT: u16 = 7_400;

/// MAC addresses of both veth ends, configured statically: inbound ARP requests are blocked.
const MAC_ADDRESSES: [&str; 2] = ["02:00:00:00:0b:01", "02:00:00:00:0b:02"];

/// Both namespaces; dropping removes them.
#[derive(Debug)]
pub(super) struct NamespacePair {
    names: [String; 2],
    interfaces: [String; 2],
    addresses: [Ipv4Addr; 2],
}

impl NamespacePair {
    /// Creates both namespaces, the veth pair and the rules that block inbound packets.
    pub(super) fn create(root: &Path) -> Result<Self> {
        if process::run_captured_in(root, "id", &["-u"])?.trim() != "0" {
            bail!("network namespaces are root's");
        }
        remove_stale_namespaces();
        let pid = std::process::id();
        let low = u8::try_from(pid % 64)? * 4;
        let high = u8::try_from((pid / 64) % 256)?;
        let this = Self {
            names: ["near", "far"].map(|side| format!("{NAMESPACE_PREFIX}{pid}-{side}")),
            interfaces: ["n", "f"].map(|side| format!("bwa{pid}{side}")),
            addresses: [1, 2].map(|host| Ipv4Addr::new(10, 214, high, low + host)),
        };
        // From here on, dropping `this` undoes every step.
        for name in &this.names {
            run_ip(&["netns", "add", name])?;
        }
        this.connect_interfaces()?;
        this.block_inbound()?;
        Ok(this)
    }

    fn connect_interfaces(&self) -> Result<()> {
        let ([near, far], [here, there]) = (&self.names, &self.interfaces);
        run_ip(&[
            "-n",
            near,
            "link",
            "add",
            here,
            "address",
            MAC_ADDRESSES[0],
            "type",
            "veth",
            "peer",
            "name",
            there,
            "address",
            MAC_ADDRESSES[1],
            "netns",
            far,
        ])?;
        let [hub, office] = self.addresses.map(|address| address.to_string());
        let sides = [
            (near, here, &hub, &office, MAC_ADDRESSES[1]),
            (far, there, &office, &hub, MAC_ADDRESSES[0]),
        ];
        for (name, end, own, other, hardware) in sides {
            run_ip(&["-n", name, "addr", "add", &format!("{own}/30"), "dev", end])?;
            run_ip(&["-n", name, "link", "set", end, "up"])?;
            run_ip(&["-n", name, "link", "set", "lo", "up"])?;
            run_ip(&[
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

    /// Drops all packets that arrive at the far end, except those from the gateway's port.
    fn block_inbound(&self) -> Result<()> {
        let (far, end, port) = (
            &self.names[1],
            &self.interfaces[1],
            GATEWAY_PORT.to_string(),
        );
        let rule = |words: &[&str]| run_ip(&[&["-n", far.as_str(), "rule"], words].concat());
        // The rule for local addresses has priority 0 by default and would precede the block.
        rule(&["add", "pref", "10", "lookup", "local"])?;
        rule(&["del", "pref", "0"])?;
        rule(&[
            "add", "pref", "1", "iif", end, "ipproto", "tcp", "sport", &port, "lookup", "local",
        ])?;
        rule(&["add", "pref", "2", "iif", end, "blackhole"])
    }

    /// Returns a command that runs the program in the gateway's namespace.
    pub(super) fn gateway_side_command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0]]).arg(program);
        command
    }

    /// Returns the test's parameters: far namespace, gateway address on the veth pair, and the far
    /// address, behind which the gateway must reach nothing.
    pub(super) fn test_spec(&self) -> String {
        let [near, far] = self.addresses;
        format!("{},{near}:{GATEWAY_PORT},{far}", self.names[1])
    }
}

impl fmt::Display for NamespacePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [near, far] = self.addresses;
        write!(
            f,
            "gateway and clients at {near}, executor and servers at {far}"
        )
    }
}

impl Drop for NamespacePair {
    fn drop(&mut self) {
        // Deleting a namespace removes the veth end; either namespace may not exist yet.
        for name in &self.names {
            let _ = run_ip(&["netns", "del", name]);
        }
    }
}

/// Removes namespaces that killed runs left behind.
fn remove_stale_namespaces() {
    let listed =
        process::run_captured(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    for name in names {
        let rest = name
            .strip_prefix(NAMESPACE_PREFIX)
            .and_then(|rest| rest.split_once('-'));
        if let Some((pid, _)) = rest
            && !Path::new("/proc").join(pid).exists()
        {
            let _ = run_ip(&["netns", "del", name]);
        }
    }
}

fn run_ip(words: &[&str]) -> Result<()> {
    process::run_captured(Command::new("ip").args(words)).map(drop)
}
