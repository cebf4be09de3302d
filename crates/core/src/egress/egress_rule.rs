//! One rule of an egress allow-list.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::egress_host::{EgressHost, parse_host_name};
use super::ip_range::IpRange;

/// Bytes of a rule.
const RULE_BYTES_MAX: usize = 512;

/// An allowed destination: `name:443`, `*.name:443`, `10.1.2.3:5432`, `10.0.0.0/8:*`,
/// `[fd00::1]:80`, `[fd00::/8]:80`, `localhost:8080`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressRule {
    pub(super) target: RuleTarget,
    /// Absent for every port.
    port: Option<u16>,
}

/// The target of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleTarget {
    /// A host name.
    Name(Box<str>),
    /// Subdomains of a name at any depth, without the name.
    Subdomains(Box<str>),
    /// An address range, for any host name.
    Range(IpRange),
    /// The two addresses of `localhost`.
    Local,
}

/// Why a rule is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EgressRuleError {
    /// The port is missing.
    #[error("a rule ends with a port, or with `:*` for every port")]
    Port,
    /// The rule has a scheme or a path.
    #[error("a rule is HOST:PORT, without a scheme and a path")]
    Url,
    /// An IPv6 address without brackets.
    #[error("an IPv6 address stands in brackets, like `[fd00::1]:443`")]
    Brackets,
    /// The range is invalid.
    #[error("a range is an address, a slash and a number of bits, with no bit set behind them")]
    Range,
    /// The host is invalid.
    #[error("a host is a name, `*.` and a name, an address or a range of addresses")]
    Host,
    /// Too many rules.
    #[error("there are more than {} rules", super::RULES_MAX)]
    TooMany,
}

impl EgressRule {
    pub(super) const fn new(target: RuleTarget, port: u16) -> Self {
        Self {
            target,
            port: Some(port),
        }
    }

    /// Parses a rule.
    ///
    /// # Errors
    /// The rule is invalid.
    pub fn parse(text: &str) -> Result<Self, EgressRuleError> {
        let text = text.trim();
        if text.contains("://") {
            return Err(EgressRuleError::Url);
        }
        let split = text
            .rsplit_once(':')
            .filter(|_| text.len() <= RULE_BYTES_MAX);
        let (host, port) = split.ok_or(EgressRuleError::Port)?;
        let port = match port {
            "*" => None,
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let port = digits.parse().ok().filter(|port| *port != 0);
                Some(port.ok_or(EgressRuleError::Port)?)
            }
            path if path.contains('/') => return Err(EgressRuleError::Url),
            _ => return Err(EgressRuleError::Port),
        };
        let target = parse_target(host)?;
        Ok(Self { target, port })
    }

    /// Whether the rule covers this port.
    pub(super) fn matches_port(&self, port: u16) -> bool {
        self.port.is_none_or(|only| only == port)
    }
}

impl FromStr for EgressRule {
    type Err = EgressRuleError;

    fn from_str(text: &str) -> Result<Self, EgressRuleError> {
        Self::parse(text)
    }
}

fn parse_target(host: &str) -> Result<RuleTarget, EgressRuleError> {
    if let Some(inside) = host.strip_prefix('[') {
        // The brackets enclose the address or the range.
        let (address, bits) = inside.split_once(']').ok_or(EgressRuleError::Host)?;
        if !address.contains(':') {
            return Err(EgressRuleError::Host);
        }
        let net = IpRange::parse(&format!("{address}{bits}"));
        return net.map(RuleTarget::Range).ok_or(EgressRuleError::Range);
    }
    if host.contains('/') {
        return IpRange::parse(host)
            .map(RuleTarget::Range)
            .ok_or(EgressRuleError::Range);
    }
    if host.contains(':') {
        return Err(EgressRuleError::Brackets);
    }
    if let Some(name) = host.strip_prefix("*.") {
        let name = parse_host_name(name.strip_suffix('.').unwrap_or(name));
        // A subdomain of `localhost` has no public address, so the rule would allow nothing.
        let name = name.filter(|name| &**name != "localhost" && !name.ends_with(".localhost"));
        return name
            .map(RuleTarget::Subdomains)
            .ok_or(EgressRuleError::Host);
    }
    match EgressHost::parse(host) {
        Some(EgressHost::Address(address)) => Ok(RuleTarget::Range(IpRange::from_address(address))),
        Some(EgressHost::Local) => Ok(RuleTarget::Local),
        Some(EgressHost::Name(name)) => Ok(RuleTarget::Name(name)),
        None => Err(EgressRuleError::Host),
    }
}

/// The canonical text of the rule.
impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            RuleTarget::Name(name) => f.write_str(name)?,
            RuleTarget::Subdomains(name) => write!(f, "*.{name}")?,
            RuleTarget::Range(net) => write!(f, "{net}")?,
            RuleTarget::Local => f.write_str("localhost")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => f.write_str(":*"),
        }
    }
}
