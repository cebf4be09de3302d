//! Brings a sandbox into force with Landlock, for one thread and what that thread starts.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus,
    NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetCreatedAttr as _, RulesetError, Scope,
};

use super::grants::{self, Right};
use super::{Level, Net, Sandbox};

/// The newest version whose rights we know; an older kernel enforces what it has.
const KNOWN: ABI = ABI::V6;

/// Entries of directories that are granted one by one, because something in them is hidden.
const ENTRIES_MAX: usize = 16_384;

/// A program that is to run confined.
#[derive(Debug)]
pub(crate) struct Confined<'a> {
    pub(crate) command: &'a OsString,
    pub(crate) args: &'a [OsString],
    pub(crate) temp: &'a Path,
}

/// Why a server was not started.
#[derive(Debug)]
pub(crate) enum NotConfined {
    /// The sandbox is not to be had.
    Sandbox(RulesetError),
    /// The program is not.
    Program(io::Error),
}

/// Starts a program inside a sandbox. The calling thread stays outside of it.
pub(crate) fn confine(
    sandbox: &Sandbox,
    program: &Confined<'_>,
    mut command: Command,
) -> Result<Child, NotConfined> {
    // A domain cannot be left, so it is entered by a thread that has nothing else to do.
    let confined = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(sandbox, program).map_err(NotConfined::Sandbox)?;
            command.spawn().map_err(NotConfined::Program)
        });
        thread.join()
    });
    confined.unwrap_or_else(|_| Err(NotConfined::Program(io::ErrorKind::Other.into())))
}

fn enter(sandbox: &Sandbox, program: &Confined<'_>) -> Result<(), RulesetError> {
    let ports = match (&sandbox.net, sandbox.level) {
        (Net::Ports(ports), _) => Some(ports.as_slice()),
        (Net::Unnamed, Level::Strict) => Some([].as_slice()),
        (Net::Unnamed | Net::Any, _) => None,
    };
    let level = match sandbox.level {
        Level::Strict => CompatLevel::HardRequirement,
        Level::Off | Level::Default => CompatLevel::BestEffort,
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?;
    if ports.is_some() {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    if sandbox.level == Level::Strict {
        ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
    }
    let mut ruleset = ruleset.create()?;
    for (path, right) in open(grants::wanted(sandbox, program), &sandbox.hidden) {
        let access = rights(right, &path);
        ruleset = ruleset.add_rule(PathBeneath::new(path, access))?;
    }
    for port in ports.unwrap_or_default() {
        ruleset = allow_port(ruleset, *port)?;
    }
    ruleset.restrict_self()?;
    Ok(())
}

fn allow_port(ruleset: RulesetCreated, port: u16) -> Result<RulesetCreated, RulesetError> {
    ruleset.add_rule(NetPort::new(port, AccessNet::ConnectTcp))
}

fn rights(right: Right, path: &PathFd) -> BitFlags<AccessFs> {
    let rights = match right {
        Right::Read => AccessFs::from_read(KNOWN),
        Right::Write => AccessFs::from_all(KNOWN),
    };
    match is_directory(path) {
        true => rights,
        false => rights & AccessFs::from_file(KNOWN),
    }
}

fn is_directory(path: &PathFd) -> bool {
    fs::metadata(own_name(path)).is_ok_and(|found| found.is_dir())
}

/// The name under which the kernel tells where an open file really is.
fn own_name(path: &PathFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", path.as_fd().as_raw_fd()))
}

/// Opens what is granted. A directory with something hidden in it is granted entry by entry, since
/// a right cannot be taken back further down.
fn open(mut wanted: Vec<(PathBuf, Right)>, hidden: &[PathBuf]) -> Vec<(PathFd, Right)> {
    let hidden: Vec<PathBuf> = hidden
        .iter()
        .map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        .collect();
    let (mut opened, mut entries) = (Vec::new(), 0);
    while let Some((path, right)) = wanted.pop() {
        let Ok(fd) = PathFd::new(&path) else {
            continue;
        };
        // Asked of what is open: a name may lead elsewhere by now.
        let Ok(real) = fs::read_link(own_name(&fd)) else {
            continue;
        };
        if hidden.iter().any(|hidden| real.starts_with(hidden)) {
            continue;
        }
        if !hidden.iter().any(|hidden| hidden.starts_with(&real)) {
            opened.push((fd, right));
            continue;
        }
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            entries += 1;
            // A link would grant what it leads to.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link && entries <= ENTRIES_MAX {
                wanted.push((entry.path(), right));
            }
        }
    }
    opened
}

/// Takes from this thread, and what it starts, the right to connect to these ports.
pub(super) fn close_ports(ports: &[u16]) -> Result<(), RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessNet::ConnectTcp)?
        .handle_access(AccessFs::Refer)?
        .create()?;
    // Moving a file to another directory is denied by every domain that does not grant it, also
    // by one that has no other rule for files.
    if let Ok(root) = PathFd::new("/") {
        ruleset = ruleset.add_rule(PathBeneath::new(root, AccessFs::Refer))?;
    }
    for port in (0..=u16::MAX).filter(|port| !ports.contains(port)) {
        ruleset = allow_port(ruleset, port)?;
    }
    ruleset.restrict_self()?;
    Ok(())
}

/// Asks the kernel for its version of Landlock. It tells when a domain is entered, so a thread
/// that ends at once enters one.
pub(super) fn landlock_abi() -> u32 {
    let asked = std::thread::scope(|scope| scope.spawn(enter_nothing).join());
    match asked {
        Ok(Ok(LandlockStatus::Available {
            effective_abi,
            kernel_abi,
        })) => {
            let newer = kernel_abi.and_then(|abi| u32::try_from(abi).ok());
            newer.unwrap_or(effective_abi as u32)
        }
        _ => 0,
    }
}

fn enter_nothing() -> Result<LandlockStatus, RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::Execute)?;
    Ok(ruleset.create()?.restrict_self()?.landlock)
}
