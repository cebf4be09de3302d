//! The way between the hub and a worker: a pair of virtual interfaces, or a proxy where those
//! cannot be had.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use anyhow::{Result, bail};

use super::proxy::Proxy;
use crate::process;

/// Begins the name of every namespace of ours; the process id of its maker follows.
const PREFIX: &str = "bowline-fleet-";

/// An address of the link layer that nobody has: what is sent there is lost without a word.
const NOBODY: &str = "02:00:00:00:00:ff";

/// What a slow way lets through.
const SLOW: &[&str] = &["rate", "400kbit", "burst", "4kb", "latency", "600ms"];

/// The way, and what can be done to it.
#[derive(Debug)]
pub(super) enum Network {
    Namespace(Namespace),
    Proxy(Proxy),
}

/// A namespace with one end of a pair of interfaces; gone when dropped.
#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
    /// The hub's end and the worker's.
    ends: [String; 2],
    addresses: [Ipv4Addr; 2],
}

impl Network {
    /// A namespace where it can be had, unless a proxy is wanted. Says why it is a proxy.
    pub(super) fn open(root: &Path, proxy: bool) -> Result<(Self, Option<String>)> {
        if proxy {
            return Ok((Self::Proxy(Proxy::open()?), Some("asked for".to_owned())));
        }
        match Namespace::open(root) {
            Ok(namespace) => Ok((Self::Namespace(namespace), None)),
            Err(error) => {
                let why = format!("{error:#}");
                let why = why.lines().last().unwrap_or_default().to_owned();
                Ok((Self::Proxy(Proxy::open()?), Some(why)))
            }
        }
    }

    /// Where the hub listens for those who come this way.
    pub(super) fn hub(&self) -> Result<SocketAddr> {
        Ok(match self {
            Self::Namespace(namespace) => {
                SocketAddr::from((namespace.addresses[0], process::free_port()?))
            }
            // A hub answers to its own port only, so the proxy has the same at another address.
            Self::Proxy(proxy) => SocketAddr::from((Ipv4Addr::LOCALHOST, proxy.port())),
        })
    }

    /// Where the hub is found from the other side, once it is known where it listens.
    pub(super) fn hub_from_afar(&self, hub: SocketAddr) -> SocketAddr {
        match self {
            Self::Namespace(_) => hub,
            Self::Proxy(proxy) => proxy.lead_to(hub),
        }
    }

    /// The program as it runs on the other side.
    pub(super) fn afar(&self, program: &Path) -> Command {
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

    /// Ends every connection, as a machine between that forgets them would.
    pub(super) fn cut(&self) {
        match self {
            Self::Namespace(namespace) => namespace.reset(),
            Self::Proxy(proxy) => proxy.cut(),
        }
    }

    /// Nothing passes, and nobody is told, until `heal`.
    pub(super) fn lose_everything(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => namespace.misdirect(),
            Self::Proxy(proxy) => {
                proxy.hold();
                Ok(())
            }
        }
    }

    /// The cable is out until `heal`.
    pub(super) fn unplug(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => {
                namespace.far(&["link", "set", &namespace.ends[1], "down"])
            }
            Self::Proxy(proxy) => {
                proxy.refuse();
                Ok(())
            }
        }
    }

    /// Little passes, late, and some is lost, until `heal`.
    pub(super) fn slow(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => namespace.throttle(),
            Self::Proxy(proxy) => {
                proxy.slow();
                Ok(())
            }
        }
    }

    /// Everything passes again.
    pub(super) fn heal(&self) -> Result<()> {
        match self {
            Self::Namespace(namespace) => namespace.heal(),
            Self::Proxy(proxy) => {
                proxy.heal();
                Ok(())
            }
        }
    }
}

impl Namespace {
    fn open(root: &Path) -> Result<Self> {
        if process::output(root, "id", &["-u"])?.trim() != "0" {
            bail!("not root");
        }
        sweep();
        let pid = std::process::id();
        let low = u8::try_from(pid % 64)? * 4;
        let high = u8::try_from((pid / 64) % 256)?;
        let [hub, worker] = [1, 2].map(|host| Ipv4Addr::new(10, 213, high, low + host));
        let this = Self {
            name: format!("{PREFIX}{pid}"),
            ends: [format!("bwf{pid}h"), format!("bwf{pid}w")],
            addresses: [hub, worker],
        };
        let [near, far] = &this.ends;
        // From here on dropping undoes whatever was done.
        ip(&["netns", "add", &this.name])?;
        ip(&[
            "link", "add", near, "type", "veth", "peer", "name", far, "netns", &this.name,
        ])?;
        ip(&["addr", "add", &format!("{hub}/30"), "dev", near])?;
        ip(&["link", "set", near, "up"])?;
        this.far(&["addr", "add", &format!("{worker}/30"), "dev", far])?;
        this.far(&["link", "set", far, "up"])?;
        this.far(&["link", "set", "lo", "up"])?;
        this.throttle()?;
        this.heal()?;
        Ok(this)
    }

    /// Does something inside.
    fn far(&self, words: &[&str]) -> Result<()> {
        ip(&[&["-n", self.name.as_str()], words].concat())
    }

    fn reset(&self) {
        // Finding nothing to end is no failure.
        let hub = self.addresses[0].to_string();
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name, "ss", "-K", "dst", &hub]);
        let _ = process::quiet(&mut inside);
        let worker = self.addresses[1].to_string();
        let _ = process::quiet(Command::new("ss").args(["-K", "dst", &worker]));
    }

    /// Both sides send to an address that nobody has: no packet arrives, no connection ends.
    fn misdirect(&self) -> Result<()> {
        let ([hub, worker], [near, far]) = (self.addresses.map(|at| at.to_string()), &self.ends);
        let to = |whom: &str, by: &str| {
            let words = [
                "neigh",
                "replace",
                whom,
                "lladdr",
                NOBODY,
                "nud",
                "permanent",
                "dev",
                by,
            ];
            words.map(str::to_owned)
        };
        let words = to(&worker, near);
        ip(&words.each_ref().map(String::as_str))?;
        let words = to(&hub, far);
        self.far(&words.each_ref().map(String::as_str))
    }

    fn throttle(&self) -> Result<()> {
        let [near, far] = &self.ends;
        let tbf = |dev| [&["qdisc", "replace", "dev", dev, "root", "tbf"], SLOW].concat();
        let mut tc = Command::new("tc");
        process::quiet(tc.args(tbf(near.as_str())))?;
        let mut tc = Command::new("tc");
        process::quiet(tc.args(["-n", &self.name]).args(tbf(far.as_str())))?;
        Ok(())
    }

    fn heal(&self) -> Result<()> {
        let ([hub, worker], [near, far]) = (self.addresses.map(|at| at.to_string()), &self.ends);
        self.far(&["link", "set", far, "up"])?;
        // What was not done needs no undoing.
        let _ = ip(&["neigh", "del", &worker, "dev", near]);
        let _ = self.far(&["neigh", "del", &hub, "dev", far]);
        let mut tc = Command::new("tc");
        let _ = process::quiet(tc.args(["qdisc", "del", "dev", near, "root"]));
        let mut tc = Command::new("tc");
        let _ = process::quiet(tc.args(["-n", &self.name, "qdisc", "del", "dev", far, "root"]));
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The other end goes with it; each may not have been made.
        let _ = ip(&["link", "del", &self.ends[0]]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Takes away what runs left behind that were killed.
fn sweep() {
    let listed = process::quiet(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    for name in listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
    {
        let Some(pid) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            let _ = ip(&["link", "del", &format!("bwf{pid}h")]);
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    process::quiet(Command::new("ip").args(words)).map(drop)
}
