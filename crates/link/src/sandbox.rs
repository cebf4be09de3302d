//! Sandbox of a hosted server: files, TCP ports and processes beyond the program itself.
//!
//! The gateway defines the policy; the reaper enforces the policy with Landlock, for the server and
//! all descendants. The reaper itself stays outside. Without the feature `sandbox` the gateway has
//! no reaper of its own and denies no ports; another program may still be the reaper.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

#[cfg(all(target_os = "linux", feature = "sandbox"))]
mod enforce;
mod landlock_support;
#[cfg(all(target_os = "linux", feature = "sandbox"))]
mod path_grants;
#[cfg(all(target_os = "linux", feature = "sandbox"))]
mod private_temp;
mod reaper_launcher;

#[cfg(all(target_os = "linux", feature = "sandbox"))]
pub(crate) use enforce::{ConfineError, ConfinedProgram, spawn_confined};
pub use landlock_support::{LandlockGap, LandlockSupport};
#[cfg(all(target_os = "linux", feature = "sandbox"))]
pub(crate) use private_temp::PrivateTempDir;
pub use reaper_launcher::ReaperLauncher;

/// Sandbox level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxLevel {
    /// Everything the gateway's user may access.
    Off,
    /// System directories, the program itself, package caches, the working directory, and paths of
    /// the entry; every TCP port except the gateway's own.
    #[default]
    Default,
    /// The program itself, and paths of the entry.
    Strict,
}

impl SandboxLevel {
    /// Returns the configuration keyword.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Default => "default",
            Self::Strict => "strict",
        }
    }
}

/// Access to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsAccess {
    /// Read and execute.
    ReadOnly,
    /// Read, execute, write, create and remove.
    ReadWrite,
}

/// A path for a server, with everything below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsGrant {
    /// The path.
    pub path: PathBuf,
    /// Access to the path.
    pub access: FsAccess,
}

impl FsGrant {
    /// Parses `PATH`, `PATH:rw` or `PATH:ro`.
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

/// Permitted TCP ports of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetAccess {
    /// At level `default` every port except the gateway's, otherwise none.
    #[default]
    LevelDefault,
    /// Every port, including the gateway's.
    Any,
    /// Only the listed ports.
    Ports(Vec<u16>),
}

/// Sandbox policy of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxPolicy {
    /// Sandbox level.
    pub level: SandboxLevel,
    /// Paths of the entry.
    pub fs: Vec<FsGrant>,
    /// Ports of the entry.
    pub net: NetAccess,
    /// Paths without access, despite any grant.
    pub hidden: Vec<PathBuf>,
}

const LEVEL: &[u8] = b"sandbox=";
const READ_ONLY: &[u8] = b"fs-ro=";
const READ_WRITE: &[u8] = b"fs-rw=";
const HIDDEN: &[u8] = b"fs-hide=";
const PORT: &[u8] = b"port=";
/// Precedes all ports, as the list may be empty.
const NET: &[u8] = b"net=";

impl SandboxPolicy {
    /// Returns a policy without a sandbox.
    #[must_use]
    pub const fn allow_all() -> Self {
        Self {
            level: SandboxLevel::Off,
            fs: Vec::new(),
            net: NetAccess::LevelDefault,
            hidden: Vec::new(),
        }
    }

    /// Whether the launcher must deny the gateway's ports.
    #[must_use]
    pub fn denies_gateway_ports(&self) -> bool {
        self.level == SandboxLevel::Default && self.net == NetAccess::LevelDefault
    }

    /// Returns the reaper arguments.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        if self.level == SandboxLevel::Off {
            return Vec::new();
        }
        let mut words = vec![format_arg(LEVEL, self.level.as_str().as_ref())];
        for grant in &self.fs {
            let name = match grant.access {
                FsAccess::ReadOnly => READ_ONLY,
                FsAccess::ReadWrite => READ_WRITE,
            };
            words.push(format_arg(name, grant.path.as_os_str()));
        }
        for path in &self.hidden {
            words.push(format_arg(HIDDEN, path.as_os_str()));
        }
        match &self.net {
            NetAccess::LevelDefault => {}
            NetAccess::Any => words.push(format_arg(NET, OsStr::new("any"))),
            NetAccess::Ports(ports) => {
                words.push(format_arg(NET, OsStr::new("named")));
                words.extend(
                    ports
                        .iter()
                        .map(|port| format_arg(PORT, port.to_string().as_ref())),
                );
            }
        }
        words
    }

    /// Parses a reaper argument; `None` for an unknown argument.
    #[cfg(feature = "sandbox")]
    pub(crate) fn parse_arg(&mut self, word: &OsStr) -> Option<()> {
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
            ("sandbox", "default") => self.level = SandboxLevel::Default,
            ("sandbox", "strict") => self.level = SandboxLevel::Strict,
            ("net", "any") => self.net = NetAccess::Any,
            ("net", "named") => self.net = NetAccess::Ports(Vec::new()),
            ("port", port) => match &mut self.net {
                NetAccess::Ports(ports) => ports.push(port.parse().ok()?),
                NetAccess::LevelDefault | NetAccess::Any => return None,
            },
            _ => return None,
        }
        Some(())
    }
}

fn format_arg(name: &[u8], value: &OsStr) -> OsString {
    OsString::from_vec([name, value.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_survives_reaper_args() {
        let all = SandboxPolicy {
            level: SandboxLevel::Strict,
            fs: vec![FsGrant::parse("/data"), FsGrant::parse("/srv/a b:ro")],
            net: NetAccess::Ports(vec![443, 5432]),
            hidden: vec!["/home/x/.local/state/bowline".into()],
        };
        let any = SandboxPolicy {
            level: SandboxLevel::Default,
            net: NetAccess::Any,
            ..SandboxPolicy::allow_all()
        };
        let none = SandboxPolicy {
            net: NetAccess::Ports(Vec::new()),
            ..any.clone()
        };
        for sandbox in [all, any, none, SandboxPolicy::allow_all()] {
            let mut read = SandboxPolicy::allow_all();
            for word in sandbox.to_args() {
                read.parse_arg(&word).unwrap();
            }
            assert_eq!(read, sandbox);
        }
        for word in ["", "sandbox", "sandbox=off", "port=1", "net=x", "--"] {
            assert_eq!(
                SandboxPolicy::allow_all().parse_arg(word.as_ref()),
                None,
                "{word:?}"
            );
        }
    }

    #[test]
    fn grant_access_is_parsed_from_suffix() {
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
