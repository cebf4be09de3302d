//! Marks every process of a server through the environment, and ends processes without a reaper.
//!
//! A reaper ends all descendants of the server, but can itself be killed. A mark is inherited over
//! forks, sessions and changes of parents, and no unrelated process has a mark by chance. So a
//! marked process certainly belongs to the gateway: neither a reused process id nor a reboot can
//! lead to the wrong process.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::Duration;

use bowline_core::hex::to_hex;

/// Environment variable of the mark.
pub const MARK_VARIABLE: &str = "BOWLINE_PROCESS_MARK";

/// Prefix of the reaper argument with the mark.
pub(crate) const MARK_ARG_PREFIX: &str = "mark=";

const RANDOM_BYTES: usize = 16;

/// Time between SIGTERM and SIGKILL for processes of a dead gateway; equal to the reaper's.
#[cfg(target_os = "linux")]
const TERM_GRACE: Duration = Duration::from_millis(700);

/// One run of a gateway, as the owner of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayInstance(Arc<str>);

impl GatewayInstance {
    /// Returns a unique instance.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(to_hex(&bytes).into()))
    }

    /// Parses the output of [`as_str`](Self::as_str); `None` for any different text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_one = text.len() == 2 * RANDOM_BYTES && text.bytes().all(is_digit);
        is_one.then(|| Self(text.into()))
    }

    /// Returns the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Mark of a server process and all descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMark(String);

impl ProcessMark {
    /// Returns the mark of a process about to be started by `instance`.
    pub(crate) fn new(instance: Option<&GatewayInstance>) -> io::Result<Self> {
        let instance = instance.map_or_else(GatewayInstance::new, |known| Ok(known.clone()))?;
        let process = GatewayInstance::new()?;
        Ok(Self(format!("{}.{}", instance.as_str(), process.as_str())))
    }

    /// Returns the value of the environment variable.
    pub(crate) fn value(&self) -> &str {
        &self.0
    }

    /// Returns the reaper argument.
    pub(crate) fn to_arg(&self) -> OsString {
        format!("{MARK_ARG_PREFIX}{}", self.0).into()
    }
}

/// Result of ending marked processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Processes found.
    pub found: usize,
    /// Processes still running.
    pub left: usize,
}

/// Ends all processes of these instances: SIGTERM, a short wait, SIGKILL. Blocks until all are
/// gone, for a few seconds at most.
#[cfg(target_os = "linux")]
#[must_use]
pub fn end_instances(instances: &[GatewayInstance]) -> SweepReport {
    let prefixes: Vec<String> = instances
        .iter()
        .map(|instance| format!("{MARK_VARIABLE}={}.", instance.as_str()))
        .collect();
    let is_ours = |entry: &[u8]| {
        let is_one = |prefix: &String| entry.starts_with(prefix.as_bytes());
        prefixes.iter().any(is_one)
    };
    sweep::end_processes(&is_ours, TERM_GRACE)
}

/// Kills all processes with this mark. Blocks like [`end_instances`].
#[cfg(target_os = "linux")]
pub(crate) fn end_marked_processes(mark: &ProcessMark) -> SweepReport {
    let whole = format!("{MARK_VARIABLE}={}", mark.value());
    sweep::end_processes(&|entry| entry == whole.as_bytes(), Duration::ZERO)
}

#[cfg(not(target_os = "linux"))]
/// No-op: only Linux exposes the environment of processes.
#[must_use]
pub fn end_instances(_instances: &[GatewayInstance]) -> SweepReport {
    SweepReport::default()
}

#[cfg(target_os = "linux")]
mod sweep;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_is_parsed_only_as_written() {
        let instance = GatewayInstance::new().unwrap();
        assert_eq!(
            GatewayInstance::parse(instance.as_str()),
            Some(instance.clone())
        );
        let upper = instance.as_str().to_uppercase() + "A";
        for other in ["", "00", "../../etc", upper.as_str()] {
            assert_eq!(GatewayInstance::parse(other), None, "{other}");
        }
        assert_ne!(GatewayInstance::new().unwrap(), instance);
    }
}
