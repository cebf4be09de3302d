//! What a hosted server may reach beside its own program: files, TCP ports, other processes.
//!
//! The gateway says what is wanted, the reaper brings it into force with Landlock for the server
//! and all that the server starts. The reaper itself stays outside.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

#[cfg(target_os = "linux")]
mod enforce;
#[cfg(target_os = "linux")]
mod grants;
mod kernel;
mod launcher;
#[cfg(target_os = "linux")]
mod temp;

#[cfg(target_os = "linux")]
pub(crate) use enforce::{Confined, NotConfined, confine};
pub use kernel::{Kernel, Lack};
pub use launcher::Launcher;
#[cfg(target_os = "linux")]
pub(crate) use temp::PrivateTemp;

/// How much of the machine a server sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// All that the gateway's user may.
    Off,
    /// System directories, its own program, package caches, its working directory, and what its
    /// entry names; every TCP port but the gateway's own.
    #[default]
    Default,
    /// Its own program, and what its entry names.
    Strict,
}

impl Level {
    /// Returns the word of the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Default => "default",
            Self::Strict => "strict",
        }
    }
}

/// What may be done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsAccess {
    /// Read and execute.
    ReadOnly,
    /// Read, execute, write, make and remove.
    ReadWrite,
}

/// A path, with all beneath it, that a server may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsGrant {
    /// The path.
    pub path: PathBuf,
    /// What for.
    pub access: FsAccess,
}

impl FsGrant {
    /// Reads `PATH`, `PATH:rw` or `PATH:ro`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let (path, access) = match text.rsplit_once(':') {
            Some((path, "ro")) => (path, FsAccess::ReadOnly),
            Some((path, "rw")) => (path, FsAccess::ReadWrite),
            _ => (text, FsAccess::ReadWrite),
        };
        Self {
            path: path.into(),
            access,
        }
    }
}

/// The TCP ports that a server may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Net {
    /// Where the level is `default` every port but those of the gateway, else none.
    #[default]
    Unnamed,
    /// Every port, those of the gateway included.
    Any,
    /// These.
    Ports(Vec<u16>),
}

/// The sandbox of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// How much it sees.
    pub level: Level,
    /// Paths that its entry names.
    pub fs: Vec<FsGrant>,
    /// Ports that its entry names.
    pub net: Net,
    /// Paths that stay closed whatever is granted.
    pub hidden: Vec<PathBuf>,
}

const LEVEL: &[u8] = b"sandbox=";
const READ_ONLY: &[u8] = b"fs-ro=";
const READ_WRITE: &[u8] = b"fs-rw=";
const HIDDEN: &[u8] = b"fs-hide=";
const PORT: &[u8] = b"port=";
/// Stands before all ports, since there may be none.
const NET: &[u8] = b"net=";

impl Sandbox {
    /// Returns no sandbox.
    #[must_use]
    pub const fn off() -> Self {
        Self {
            level: Level::Off,
            fs: Vec::new(),
            net: Net::Unnamed,
            hidden: Vec::new(),
        }
    }

    /// Whether the ports of the gateway are to be closed by the process that starts the reaper.
    #[must_use]
    pub fn closes_ports(&self) -> bool {
        self.level == Level::Default && self.net == Net::Unnamed
    }

    /// Writes the words that a reaper reads.
    pub(crate) fn words(&self) -> Vec<OsString> {
        if self.level == Level::Off {
            return Vec::new();
        }
        let mut words = vec![word(LEVEL, self.level.as_str().as_ref())];
        for grant in &self.fs {
            let name = match grant.access {
                FsAccess::ReadOnly => READ_ONLY,
                FsAccess::ReadWrite => READ_WRITE,
            };
            words.push(word(name, grant.path.as_os_str()));
        }
        for path in &self.hidden {
            words.push(word(HIDDEN, path.as_os_str()));
        }
        match &self.net {
            Net::Unnamed => {}
            Net::Any => words.push(word(NET, OsStr::new("any"))),
            Net::Ports(ports) => {
                words.push(word(NET, OsStr::new("named")));
                words.extend(
                    ports
                        .iter()
                        .map(|port| word(PORT, port.to_string().as_ref())),
                );
            }
        }
        words
    }

    /// Takes one of those words; `None` when it is another one.
    pub(crate) fn take(&mut self, word: &OsStr) -> Option<()> {
        let bytes = word.as_bytes();
        let path = |rest: &[u8]| PathBuf::from(OsString::from_vec(rest.to_vec()));
        let mut grant = |rest: &[u8], access| {
            self.fs.push(FsGrant {
                path: path(rest),
                access,
            });
            Some(())
        };
        if let Some(rest) = bytes.strip_prefix(READ_ONLY) {
            return grant(rest, FsAccess::ReadOnly);
        }
        if let Some(rest) = bytes.strip_prefix(READ_WRITE) {
            return grant(rest, FsAccess::ReadWrite);
        }
        if let Some(rest) = bytes.strip_prefix(HIDDEN) {
            self.hidden.push(path(rest));
            return Some(());
        }
        let word = word.to_str()?;
        match word.split_once('=')? {
            ("sandbox", "default") => self.level = Level::Default,
            ("sandbox", "strict") => self.level = Level::Strict,
            ("net", "any") => self.net = Net::Any,
            ("net", "named") => self.net = Net::Ports(Vec::new()),
            ("port", port) => match &mut self.net {
                Net::Ports(ports) => ports.push(port.parse().ok()?),
                Net::Unnamed | Net::Any => return None,
            },
            _ => return None,
        }
        Some(())
    }
}

fn word(name: &[u8], value: &OsStr) -> OsString {
    OsString::from_vec([name, value.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaper_reads_sandbox_that_was_written() {
        let all = Sandbox {
            level: Level::Strict,
            fs: vec![FsGrant::parse("/data"), FsGrant::parse("/srv/a b:ro")],
            net: Net::Ports(vec![443, 5432]),
            hidden: vec!["/home/x/.local/state/bowline".into()],
        };
        let any = Sandbox {
            level: Level::Default,
            net: Net::Any,
            ..Sandbox::off()
        };
        let none = Sandbox {
            net: Net::Ports(Vec::new()),
            ..any.clone()
        };
        for sandbox in [all, any, none, Sandbox::off()] {
            let mut read = Sandbox::off();
            for word in sandbox.words() {
                read.take(&word).unwrap();
            }
            assert_eq!(read, sandbox);
        }
        for word in ["", "sandbox", "sandbox=off", "port=1", "net=x", "--"] {
            assert_eq!(Sandbox::off().take(word.as_ref()), None, "{word:?}");
        }
    }

    #[test]
    fn grant_has_its_access_last() {
        let grants = ["/a", "/a:ro", "/a:rw", "/a:b"].map(FsGrant::parse);
        let grants = grants.map(|grant| (grant.path.display().to_string(), grant.access));
        let (read, write) = (FsAccess::ReadOnly, FsAccess::ReadWrite);
        let expected = [("/a", write), ("/a", read), ("/a", write), ("/a:b", write)];
        assert_eq!(
            grants,
            expected.map(|(path, access)| (path.to_owned(), access))
        );
    }
}
