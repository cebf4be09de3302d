//! Network between hub and worker: a veth pair into a network namespace, or a proxy without root.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use anyhow::{Result, bail};

use super::fault_proxy::FaultProxy;
use crate::process;

/// Prefix of namespace names; the creator's process id follows.
const NAMESPACE_PREFIX: &str = "bowline-broker-chaos-";

/// A MAC address that no interface has: packets to this address are lost silently.
const UNUSED_MAC: &str = "02:00:00:00:00:ff";

/// Traffic-control parameters of a slow link.
const SLOW_LINK: &[&str] = &["rate", "400kbit", "burst", "4kb", "latency", "600ms"];

/// The network, and the faults that can be injected.
#[derive(Debug)]
pub(super) enum HubNetwork {
    Namespace(NetworkNamespace),
    Proxy(FaultProxy),
}

/// A namespace with one end of a veth pair; dropping removes both.
#[derive(Debug)]
pub(super) struct NetworkNamespace {
    name: String,
    /// The hub's end and the worker's.
    interfaces: [String; 2],
    addresses: [Ipv4Addr; 2],
}

impl HubNetwork {
    /// Creates a namespace if possible, unless `proxy` is set. Returns the reason for a proxy.
    pub(super) fn open(root: &Path, proxy: bool) -> Result<(Self, Option<String>)> {
        if proxy {
            return Ok((
                Self::Proxy(FaultProxy::open()?),
                Some("asked for".to_owned()),
            ));
        }
        match NetworkNamespace::create(root) {
            Ok(namespace) => Ok((Self::Namespace(namespace), None)),
            Err(error) => {
                let why = format!("{error:#}");
                let why = why.lines().last().unwrap_or_default().to_owned();
                Ok((Self::Proxy(FaultProxy::open()?), Some(why)))
            }
        }
    }

    /// Returns the address on which the hub listens for the worker side.
    pub(super) fn hub_listen_address(&self) -> Result<SocketAddr> {
        Ok(match self {
            Self::Namespace(namespace) => {
                SocketAddr::from((namespace.addresses[0], process::free_port()?))
            }
            // A hub accepts only its own port in `Host`, so the proxy has the same port at another
            // address.
            Self::Proxy(proxy) => SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port())),
        })
    }

    /// Returns the hub's address as seen from the worker side, given the listen address.
    pub(super) fn hub_remote_address(&self, hub: SocketAddr) -> SocketAddr {
        match self {
            Self::Namespace(_) => hub,
            Self::Proxy(proxy) => proxy.set_hub(hub),
        }
    }

    /// Returns a command that runs the program on the worker side.
    pub(super) fn worker_side_command(&self, program: &Path) -> Command {
        match self {
            Self::Namespace(namespace) => {
                let mut command = Command::new("ip");
                command
                    .args(["netns", "exec", &namespace.name])
                    .arg(program);
                command
            }
            Self::Proxy(_) => Command::new(program),
        }
    }

    /// Resets every connection, as a middlebox that loses its state would.
    pub(super) fn cut_connections(&self) {
        match self {
            Self::Namespace(namespace) => namespace.reset_connections(),
            Self::Proxy(proxy) => proxy.cut_connections(),
        }
    }

    /// Drops all packets without closing connections, until `restore`.
    pub(super) fn drop_packets(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => namespace.drop_packets(),
            Self::Proxy(proxy) => {
                proxy.hold_bytes();
                Ok(())
            }
        }
    }

    /// Takes the link down until `restore`.
    pub(super) fn take_link_down(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => {
                namespace.run_ip_inside(&["link", "set", &namespace.interfaces[1], "down"])
            }
            Self::Proxy(proxy) => {
                proxy.refuse_connections();
                Ok(())
            }
        }
    }

    /// Limits bandwidth, adds latency and drops packets, until `restore`.
    pub(super) fn slow_down(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => namespace.throttle(),
            Self::Proxy(proxy) => {
                proxy.slow_down();
                Ok(())
            }
        }
    }

    /// Undoes every fault.
    pub(super) fn restore(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => namespace.restore(),
            Self::Proxy(proxy) => {
                proxy.restore();
                Ok(())
            }
        }
    }
}

impl NetworkNamespace {
    fn create(root: &Path) -> Result<Self> {
        if process::run_captured_in(root, "id", &["-u"])?.trim() != "0" {
            bail!("not root");
        }
        remove_stale_namespaces();
        let pid = std::process::id();
        let low = u8::try_from(pid % 64)? * 4;
        let high = u8::try_from((pid / 64) % 256)?;
        let [hub, worker] = [1, 2].map(|host| Ipv4Addr::new(10, 213, high, low + host));
        let this = Self {
            name: format!("{NAMESPACE_PREFIX}{pid}"),
            interfaces: [format!("bwf{pid}h"), format!("bwf{pid}w")],
            addresses: [hub, worker],
        };
        let [near, far] = &this.interfaces;
        // From here on, dropping `this` undoes every step.
        run_ip(&["netns", "add", &this.name])?;
        run_ip(&[
            "link", "add", near, "type", "veth", "peer", "name", far, "netns", &this.name,
        ])?;
        run_ip(&["addr", "add", &format!("{hub}/30"), "dev", near])?;
        run_ip(&["link", "set", near, "up"])?;
        this.run_ip_inside(&["addr", "add", &format!("{worker}/30"), "dev", far])?;
        this.run_ip_inside(&["link", "set", far, "up"])?;
        this.run_ip_inside(&["link", "set", "lo", "up"])?;
        this.throttle()?;
        this.restore()?;
        Ok(this)
    }

    /// Runs `ip` inside the namespace.
    fn run_ip_inside(&self, words: &[&str]) -> Result<()> {
        run_ip(&[&["-n", self.name.as_str()], words].concat())
    }

    fn reset_connections(&self) {
        // No matching connection is not an error.
        let hub = self.addresses[0].to_string();
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name, "ss", "-K", "dst", &hub]);
        let _ = process::run_captured(&mut inside);
        let worker = self.addresses[1].to_string();
        let _ = process::run_captured(Command::new("ss").args(["-K", "dst", &worker]));
    }

    /// Points both neighbour entries at an unused MAC address: packets are lost, connections stay
    /// open.
    fn drop_packets(&self) -> Result<()> {
        let ([hub, worker], [near, far]) =
            (self.addresses.map(|at| at.to_string()), &self.interfaces);
        let to = |whom: &str, by: &str| {
            let words = [
                "neigh",
                "replace",
                whom,
                "lladdr",
                UNUSED_MAC,
                "nud",
                "permanent",
                "dev",
                by,
            ];
            words.map(str::to_owned)
        };
        let words = to(&worker, near);
        run_ip(&words.each_ref().map(String::as_str))?;
        let words = to(&hub, far);
        self.run_ip_inside(&words.each_ref().map(String::as_str))
    }

    fn throttle(&self) -> Result<()> {
        let [near, far] = &self.interfaces;
        let tbf = |dev| [&["qdisc", "replace", "dev", dev, "root", "tbf"], SLOW_LINK].concat();
        let mut tc = Command::new("tc");
        process::run_captured(tc.args(tbf(near.as_str())))?;
        let mut tc = Command::new("tc");
        process::run_captured(tc.args(["-n", &self.name]).args(tbf(far.as_str())))?;
        Ok(())
    }

    fn restore(&self) -> Result<()> {
        let ([hub, worker], [near, far]) =
            (self.addresses.map(|at| at.to_string()), &self.interfaces);
        self.run_ip_inside(&["link", "set", far, "up"])?;
        // Undoing a fault that was not injected fails and is ignored.
        let _ = run_ip(&["neigh", "del", &worker, "dev", near]);
        let _ = self.run_ip_inside(&["neigh", "del", &hub, "dev", far]);
        let mut tc = Command::new("tc");
        let _ = process::run_captured(tc.args(["qdisc", "del", "dev", near, "root"]));
        let mut tc = Command::new("tc");
        let _ =
            process::run_captured(tc.args(["-n", &self.name, "qdisc", "del", "dev", far, "root"]));
        Ok(())
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        // Deleting one end removes the pair; either may not exist yet.
        let _ = run_ip(&["link", "del", &self.interfaces[0]]);
        let _ = run_ip(&["netns", "del", &self.name]);
    }
}

/// Removes namespaces that killed runs left behind.
fn remove_stale_namespaces() {
    let listed =
        process::run_captured(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    for name in listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
    {
        let Some(pid) = name.strip_prefix(NAMESPACE_PREFIX) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            let _ = run_ip(&["link", "del", &format!("bwf{pid}h")]);
            let _ = run_ip(&["netns", "del", name]);
        }
    }
}

fn run_ip(words: &[&str]) -> Result<()> {
    process::run_captured(Command::new("ip").args(words)).map(drop)
}
