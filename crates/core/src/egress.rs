//! Where requests may go: an allow-list of names, addresses and ranges, held against the address
//! that is really dialled.
//!
//! Nothing is allowed by default. What is special (this machine, private networks, metadata of
//! clouds, tunnels into any of them) is allowed only by a rule that means just that: one whose
//! range lies within the special one. A rule for a name, or for everything, is for public
//! addresses.

mod host;
mod net;
mod rule;
mod special;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::fmt;

use thiserror::Error;

pub use host::Host;
pub use rule::{Rule, RuleError};

use net::Net;
use rule::Target;

/// Rules of one list.
pub const RULES_MAX: usize = 1_024;

/// An allow-list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    rules: Vec<Rule>,
}

impl Egress {
    /// Returns what allows nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self { rules: Vec::new() }
    }

    /// Returns what allows what one of these rules does.
    ///
    /// # Errors
    /// There are too many.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleError> {
        match rules.len() <= RULES_MAX {
            true => Ok(Self { rules }),
            false => Err(RuleError::TooMany),
        }
    }

    /// Reads rules.
    ///
    /// # Errors
    /// One of them is none, or there are too many.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, RuleError> {
        let mut rules = Vec::new();
        for text in texts.into_iter().take(RULES_MAX + 1) {
            rules.push(Rule::parse(text)?);
        }
        Self::new(rules)
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether there is an address behind this host that may be dialled. Where there is none,
    /// its name need not be looked up, and must not: a lookup tells others.
    #[must_use]
    pub fn may(&self, host: &Host, port: u16) -> bool {
        match host {
            Host::Address(address) => self.permits(host, *address, port),
            Host::Local => Host::LOCAL.iter().any(|ip| self.permits(host, *ip, port)),
            Host::Name(_) => {
                let ranges = |rule: &Rule| matches!(rule.target, Target::Net(_) | Target::Local);
                self.names(host, port)
                    || self.rules.iter().any(|rule| ranges(rule) && rule.has(port))
            }
        }
    }

    /// Whether a rule names this host. Who asks for it may be told what its name leads to.
    #[must_use]
    pub fn names(&self, host: &Host, port: u16) -> bool {
        let named = |rule: &Rule| match (&rule.target, host) {
            (Target::Name(name), Host::Name(asked)) => name == asked,
            (Target::Under(name), Host::Name(asked)) => is_under(asked, name),
            (Target::Local, Host::Local) => true,
            (Target::Net(net), Host::Address(address)) => net.covers(*address),
            _ => false,
        };
        self.rules.iter().any(|rule| rule.has(port) && named(rule))
    }

    /// Whether this address may be dialled for this host.
    #[must_use]
    pub fn permits(&self, host: &Host, address: IpAddr, port: u16) -> bool {
        let address = net::plain(address);
        let special = special::range_of(address);
        let permits = |rule: &Rule| match &rule.target {
            Target::Net(net) => {
                net.covers(address) && special.is_none_or(|special| net.is_within(&special))
            }
            Target::Local => Host::LOCAL.contains(&address),
            Target::Name(name) => {
                special.is_none() && matches!(host, Host::Name(asked) if asked == name)
            }
            Target::Under(name) => {
                special.is_none() && matches!(host, Host::Name(asked) if is_under(asked, name))
            }
        };
        self.rules
            .iter()
            .any(|rule| rule.has(port) && permits(rule))
    }
}

fn is_under(asked: &str, name: &str) -> bool {
    let over = asked.strip_suffix(name);
    over.is_some_and(|over| over.len() > 1 && over.ends_with('.'))
}

/// Whether an address is none that anybody can reach from anywhere.
#[must_use]
pub fn is_special(address: IpAddr) -> bool {
    special::range_of(net::plain(address)).is_some()
}

/// Something that may not be dialled. What is shown is the same whatever was asked for; what is
/// known of it is for who may change the rules.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the destination is not allowed")]
pub struct Denied {
    host: Option<Host>,
    address: Option<IpAddr>,
    port: u16,
}

impl Denied {
    /// A host that may not be dialled, whatever its address.
    #[must_use]
    pub const fn host(host: Host, port: u16) -> Self {
        Self {
            host: Some(host),
            address: None,
            port,
        }
    }

    /// A host that has this address, which may not be dialled for it.
    #[must_use]
    pub fn address(host: Host, address: IpAddr, port: u16) -> Self {
        Self {
            host: Some(host),
            address: Some(net::plain(address)),
            port,
        }
    }

    /// Something that is no host, or one that others may take for another.
    #[must_use]
    pub const fn odd(port: u16) -> Self {
        Self {
            host: None,
            address: None,
            port,
        }
    }

    /// Returns the port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the rule that would allow it; none could where the host is an odd one.
    #[must_use]
    pub fn remedy(&self) -> Option<Rule> {
        let special = self.address.filter(|address| is_special(*address));
        let target = match (self.host.as_ref()?, special) {
            (Host::Local, _) => Target::Local,
            (Host::Address(address), _) => Target::Net(Net::single(*address)),
            (Host::Name(_), Some(address)) => Target::Net(Net::single(address)),
            (Host::Name(name), None) => Target::Name(name.clone()),
        };
        Some(Rule::new(target, self.port))
    }

    /// Returns what was asked for, in the words of who may change the rules.
    #[must_use]
    pub fn what(&self) -> What<'_> {
        What(self)
    }
}

/// Shows what was denied.
#[derive(Clone, Copy, Debug)]
pub struct What<'a>(&'a Denied);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denied {
            host,
            address,
            port,
        } = self.0;
        match host {
            None => write!(f, "an odd host, port {port}")?,
            Some(host) => write!(f, "{host}:{port}")?,
        }
        match (host, address) {
            (Some(Host::Name(_)), Some(address)) => write!(f, " ({address})"),
            _ => Ok(()),
        }
    }
}
