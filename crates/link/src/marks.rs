//! Marks every process of a server through its environment, and ends those that lost their reaper.
//!
//! A reaper ends all that its server started, but a reaper can be killed as well. A mark is
//! inherited over forks, sessions and changes of parents, and no other process has it by chance,
//! so a process that carries one is surely ours: neither a process id that came to mean another
//! process nor a reboot can lead to a wrong end.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::Duration;

use bowline_core::hex::hex;

/// The variable that carries the mark.
pub const MARK_VARIABLE: &str = "BOWLINE_PROCESS_MARK";

/// The word by which a reaper is told the mark of its server.
pub(crate) const MARK_WORD: &str = "mark=";

const RANDOM_BYTES: usize = 16;

/// How long processes of a dead gateway may take after SIGTERM; a reaper gives them as long.
#[cfg(target_os = "linux")]
const TERM_GRACE: Duration = Duration::from_millis(700);

/// One life of a gateway, as far as its processes are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance(Arc<str>);

impl Instance {
    /// Returns an instance that is different from all others.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(hex(&bytes).into()))
    }

    /// Reads what [`as_str`](Self::as_str) returned; none where it is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_one = text.len() == 2 * RANDOM_BYTES && text.bytes().all(is_digit);
        is_one.then(|| Self(text.into()))
    }

    /// Returns its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The mark of one server process and of all that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark(String);

impl Mark {
    /// Returns the mark of a process that is about to be started by `instance`.
    pub(crate) fn new(instance: Option<&Instance>) -> io::Result<Self> {
        let instance = instance.map_or_else(Instance::new, |known| Ok(known.clone()))?;
        let process = Instance::new()?;
        Ok(Self(format!("{}.{}", instance.as_str(), process.as_str())))
    }

    /// Returns the value of the variable.
    pub(crate) fn value(&self) -> &str {
        &self.0
    }

    /// Returns the word for a reaper.
    pub(crate) fn word(&self) -> OsString {
        format!("{MARK_WORD}{}", self.0).into()
    }
}

/// What became of marked processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// How many were found.
    pub found: usize,
    /// How many of them could not be ended.
    pub left: usize,
}

/// Ends all processes that these instances left: SIGTERM, a moment, SIGKILL. Blocks until none is
/// left, for a few seconds at most.
#[cfg(target_os = "linux")]
#[must_use]
pub fn end_instances(instances: &[Instance]) -> Ended {
    let prefixes: Vec<String> = instances
        .iter()
        .map(|instance| format!("{MARK_VARIABLE}={}.", instance.as_str()))
        .collect();
    let is_ours = |entry: &[u8]| {
        let is_one = |prefix: &String| entry.starts_with(prefix.as_bytes());
        prefixes.iter().any(is_one)
    };
    sweep::end(&is_ours, TERM_GRACE)
}

/// Kills all processes that carry this mark. Blocks like [`end_instances`].
#[cfg(target_os = "linux")]
pub(crate) fn end_marked(mark: &Mark) -> Ended {
    let whole = format!("{MARK_VARIABLE}={}", mark.value());
    sweep::end(&|entry| entry == whole.as_bytes(), Duration::ZERO)
}

#[cfg(not(target_os = "linux"))]
/// Other systems do not show the environment of processes.
#[must_use]
pub fn end_instances(_instances: &[Instance]) -> Ended {
    Ended::default()
}

#[cfg(target_os = "linux")]
mod sweep;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_is_parsed_only_as_written() {
        let instance = Instance::new().unwrap();
        assert_eq!(Instance::parse(instance.as_str()), Some(instance.clone()));
        let upper = instance.as_str().to_uppercase() + "A";
        for other in ["", "00", "../../etc", upper.as_str()] {
            assert_eq!(Instance::parse(other), None, "{other}");
        }
        assert_ne!(Instance::new().unwrap(), instance);
    }
}
