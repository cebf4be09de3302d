//! Egress allow-list: names, addresses and ranges, matched against the address actually dialled.
//!
//! Default deny. Special addresses (this machine, private networks, cloud metadata, tunnels into
//! any of them) need a rule with a range within the special range. A rule for a name or for
//! everything covers public addresses only.

mod egress_host;
mod egress_rule;
mod ip_range;
mod special_ranges;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::fmt;

use thiserror::Error;

pub use egress_host::EgressHost;
pub use egress_rule::{EgressRule, EgressRuleError};

use egress_rule::RuleTarget;
use ip_range::IpRange;

/// Rules per list.
pub const RULES_MAX: usize = 1_024;

/// An egress allow-list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressAllowlist {
    rules: Vec<EgressRule>,
}

impl EgressAllowlist {
    /// Returns a list without rules, denying everything.
    #[must_use]
    pub const fn deny_all() -> Self {
        Self { rules: Vec::new() }
    }

    /// Returns a list with the given rules.
    ///
    /// # Errors
    /// Too many rules.
    pub fn new(rules: Vec<EgressRule>) -> Result<Self, EgressRuleError> {
        match rules.len() <= RULES_MAX {
            true => Ok(Self { rules }),
            false => Err(EgressRuleError::TooMany),
        }
    }

    /// Parses rules.
    ///
    /// # Errors
    /// A rule is invalid, or too many rules.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, EgressRuleError> {
        let mut rules = Vec::new();
        for text in texts.into_iter().take(RULES_MAX + 1) {
            rules.push(EgressRule::parse(text)?);
        }
        Self::new(rules)
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &[EgressRule] {
        &self.rules
    }

    /// Whether some address of this host could be dialled. If not, the name must not be resolved: a
    /// DNS query leaks the name.
    #[must_use]
    pub fn may_reach(&self, host: &EgressHost, port: u16) -> bool {
        match host {
            EgressHost::Address(address) => self.permits_address(host, *address, port),
            EgressHost::Local => EgressHost::LOCAL
                .iter()
                .any(|ip| self.permits_address(host, *ip, port)),
            EgressHost::Name(_) => {
                let ranges = |rule: &EgressRule| {
                    matches!(rule.target, RuleTarget::Range(_) | RuleTarget::Local)
                };
                self.has_rule_for(host, port)
                    || self
                        .rules
                        .iter()
                        .any(|rule| ranges(rule) && rule.matches_port(port))
            }
        }
    }

    /// Whether a rule names this host. If so, the caller may learn the resolved address.
    #[must_use]
    pub fn has_rule_for(&self, host: &EgressHost, port: u16) -> bool {
        let named = |rule: &EgressRule| match (&rule.target, host) {
            (RuleTarget::Name(name), EgressHost::Name(host_name)) => name == host_name,
            (RuleTarget::Subdomains(name), EgressHost::Name(host_name)) => {
                is_subdomain(host_name, name)
            }
            (RuleTarget::Local, EgressHost::Local) => true,
            (RuleTarget::Range(net), EgressHost::Address(address)) => net.contains(*address),
            _ => false,
        };
        self.rules
            .iter()
            .any(|rule| rule.matches_port(port) && named(rule))
    }

    /// Whether this address may be dialled for this host.
    #[must_use]
    pub fn permits_address(&self, host: &EgressHost, address: IpAddr, port: u16) -> bool {
        let address = ip_range::to_canonical(address);
        let special = special_ranges::special_range(address);
        let permits = |rule: &EgressRule| match &rule.target {
            RuleTarget::Range(net) => {
                net.contains(address) && special.is_none_or(|special| net.is_subset_of(&special))
            }
            RuleTarget::Local => EgressHost::LOCAL.contains(&address),
            RuleTarget::Name(name) => {
                special.is_none() && matches!(host, EgressHost::Name(asked) if asked == name)
            }
            RuleTarget::Subdomains(name) => {
                special.is_none()
                    && matches!(host, EgressHost::Name(asked) if is_subdomain(asked, name))
            }
        };
        self.rules
            .iter()
            .any(|rule| rule.matches_port(port) && permits(rule))
    }
}

fn is_subdomain(host_name: &str, name: &str) -> bool {
    let prefix = host_name.strip_suffix(name);
    prefix.is_some_and(|prefix| prefix.len() > 1 && prefix.ends_with('.'))
}

/// Whether an address is not publicly routable.
#[must_use]
pub fn is_special_address(address: IpAddr) -> bool {
    special_ranges::special_range(ip_range::to_canonical(address)).is_some()
}

/// A denied destination. The display text is always the same; the details are for operators.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the destination is not allowed")]
pub struct DeniedDestination {
    host: Option<EgressHost>,
    address: Option<IpAddr>,
    port: u16,
}

impl DeniedDestination {
    /// A host denied for every address.
    #[must_use]
    pub const fn for_host(host: EgressHost, port: u16) -> Self {
        Self {
            host: Some(host),
            address: None,
            port,
        }
    }

    /// A host denied for this address.
    #[must_use]
    pub fn for_address(host: EgressHost, address: IpAddr, port: u16) -> Self {
        Self {
            host: Some(host),
            address: Some(ip_range::to_canonical(address)),
            port,
        }
    }

    /// An invalid or ambiguous host.
    #[must_use]
    pub const fn for_invalid_host(port: u16) -> Self {
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

    /// Returns the rule that would allow the destination; `None` for an invalid host.
    #[must_use]
    pub fn remedy_rule(&self) -> Option<EgressRule> {
        let special = self.address.filter(|address| is_special_address(*address));
        let target = match (self.host.as_ref()?, special) {
            (EgressHost::Local, _) => RuleTarget::Local,
            (EgressHost::Address(address), _) => RuleTarget::Range(IpRange::from_address(*address)),
            (EgressHost::Name(_), Some(address)) => {
                RuleTarget::Range(IpRange::from_address(address))
            }
            (EgressHost::Name(name), None) => RuleTarget::Name(name.clone()),
        };
        Some(EgressRule::new(target, self.port))
    }

    /// Returns the destination in detail, for operators.
    #[must_use]
    pub fn detail(&self) -> DestinationDetail<'_> {
        DestinationDetail(self)
    }
}

/// Displays a denied destination.
#[derive(Clone, Copy, Debug)]
pub struct DestinationDetail<'a>(&'a DeniedDestination);

impl fmt::Display for DestinationDetail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeniedDestination {
            host,
            address,
            port,
        } = self.0;
        match host {
            None => write!(f, "an odd host, port {port}")?,
            Some(host) => write!(f, "{host}:{port}")?,
        }
        match (host, address) {
            (Some(EgressHost::Name(_)), Some(address)) => write!(f, " ({address})"),
            _ => Ok(()),
        }
    }
}
