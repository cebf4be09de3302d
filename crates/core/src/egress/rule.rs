//! One rule of an allow-list, as it is written.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::host::{Host, name_of};
use super::net::Net;

/// Bytes of a rule.
const RULE_BYTES_MAX: usize = 512;

/// Something that may be dialled: `name:443`, `*.name:443`, `10.1.2.3:5432`, `10.0.0.0/8:*`,
/// `[fd00::1]:80`, `[fd00::/8]:80`, `localhost:8080`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) target: Target,
    /// Every port where absent.
    port: Option<u16>,
}

/// What a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// This name.
    Name(Box<str>),
    /// What lies under this name, at any depth; not the name itself.
    Under(Box<str>),
    /// These addresses, whoever has them.
    Net(Net),
    /// The two addresses that `localhost` stands for.
    Local,
}

/// Why a text is no rule.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RuleError {
    /// It has no port.
    #[error("a rule ends with a port, or with `:*` for every port")]
    Port,
    /// It is an address with a scheme or a path.
    #[error("a rule is HOST:PORT, without a scheme and a path")]
    Url,
    /// An address of version 6 stands without brackets.
    #[error("an IPv6 address stands in brackets, like `[fd00::1]:443`")]
    Brackets,
    /// Its range is none.
    #[error("a range is an address, a slash and a number of bits, with no bit set behind them")]
    Range,
    /// Its host is none.
    #[error("a host is a name, `*.` and a name, an address or a range of addresses")]
    Host,
    /// There are more than fit.
    #[error("there are more than {} rules", super::RULES_MAX)]
    TooMany,
}

impl Rule {
    pub(super) const fn new(target: Target, port: u16) -> Self {
        Self {
            target,
            port: Some(port),
        }
    }

    /// Reads a rule.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let text = text.trim();
        if text.contains("://") {
            return Err(RuleError::Url);
        }
        let split = text
            .rsplit_once(':')
            .filter(|_| text.len() <= RULE_BYTES_MAX);
        let (host, port) = split.ok_or(RuleError::Port)?;
        let port = match port {
            "*" => None,
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let port = digits.parse().ok().filter(|port| *port != 0);
                Some(port.ok_or(RuleError::Port)?)
            }
            path if path.contains('/') => return Err(RuleError::Url),
            _ => return Err(RuleError::Port),
        };
        let target = target(host)?;
        Ok(Self { target, port })
    }

    /// Whether it is about this port.
    pub(super) fn has(&self, port: u16) -> bool {
        self.port.is_none_or(|only| only == port)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::parse(text)
    }
}

fn target(host: &str) -> Result<Target, RuleError> {
    if let Some(inside) = host.strip_prefix('[') {
        // The brackets stand around the address, or around the range.
        let (address, bits) = inside.split_once(']').ok_or(RuleError::Host)?;
        if !address.contains(':') {
            return Err(RuleError::Host);
        }
        let net = Net::parse(&format!("{address}{bits}"));
        return net.map(Target::Net).ok_or(RuleError::Range);
    }
    if host.contains('/') {
        return Net::parse(host).map(Target::Net).ok_or(RuleError::Range);
    }
    if host.contains(':') {
        return Err(RuleError::Brackets);
    }
    if let Some(name) = host.strip_prefix("*.") {
        let name = name_of(name.strip_suffix('.').unwrap_or(name));
        // No name under this machine's has a public address, so such a rule would allow nothing.
        let name = name.filter(|name| &**name != "localhost" && !name.ends_with(".localhost"));
        return name.map(Target::Under).ok_or(RuleError::Host);
    }
    match Host::parse(host) {
        Some(Host::Address(address)) => Ok(Target::Net(Net::single(address))),
        Some(Host::Local) => Ok(Target::Local),
        Some(Host::Name(name)) => Ok(Target::Name(name)),
        None => Err(RuleError::Host),
    }
}

/// As it is written, in its plainest form.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Name(name) => f.write_str(name)?,
            Target::Under(name) => write!(f, "*.{name}")?,
            Target::Net(net) => write!(f, "{net}")?,
            Target::Local => f.write_str("localhost")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => f.write_str(":*"),
        }
    }
}
