//! Enforces a sandbox policy with Landlock, for a thread and all children.

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

use super::path_grants::{self, PathRight};
use super::{NetAccess, SandboxLevel, SandboxPolicy};

/// Newest known Landlock ABI; an older kernel enforces a subset.
const KNOWN_ABI: ABI = ABI::V6;

/// Directory entries granted individually next to a hidden path.
const ENTRIES_MAX: usize = 16_384;

/// A program to run in the sandbox.
#[derive(Debug)]
pub(crate) struct ConfinedProgram<'a> {
    pub(crate) command: &'a OsString,
    pub(crate) args: &'a [OsString],
    pub(crate) temp: &'a Path,
}

/// Why a confined server was not started.
#[derive(Debug)]
pub(crate) enum ConfineError {
    /// The sandbox is not available.
    Sandbox(RulesetError),
    /// The program could not be started.
    Program(io::Error),
}

/// Starts a program in a sandbox. The calling thread stays outside.
pub(crate) fn spawn_confined(
    sandbox: &SandboxPolicy,
    program: &ConfinedProgram<'_>,
    mut command: Command,
) -> Result<Child, ConfineError> {
    // A domain cannot be left, so a dedicated thread enters.
    let confined = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_domain(sandbox, program).map_err(ConfineError::Sandbox)?;
            command.spawn().map_err(ConfineError::Program)
        });
        thread.join()
    });
    confined.unwrap_or_else(|_| Err(ConfineError::Program(io::ErrorKind::Other.into())))
}

fn enter_domain(
    sandbox: &SandboxPolicy,
    program: &ConfinedProgram<'_>,
) -> Result<(), RulesetError> {
    let ports = match (&sandbox.net, sandbox.level) {
        (NetAccess::Ports(ports), _) => Some(ports.as_slice()),
        (NetAccess::LevelDefault, SandboxLevel::Strict) => Some([].as_slice()),
        (NetAccess::LevelDefault | NetAccess::Any, _) => None,
    };
    let level = match sandbox.level {
        SandboxLevel::Strict => CompatLevel::HardRequirement,
        SandboxLevel::Off | SandboxLevel::Default => CompatLevel::BestEffort,
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(KNOWN_ABI))?
        .scope(Scope::from_all(KNOWN_ABI))?;
    if ports.is_some() {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    if sandbox.level == SandboxLevel::Strict {
        ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
    }
    let mut ruleset = ruleset.create()?;
    for (path, right) in open_granted(
        path_grants::granted_paths(sandbox, program),
        &sandbox.hidden,
    ) {
        let access = access_rights(right, &path);
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

fn access_rights(right: PathRight, path: &PathFd) -> BitFlags<AccessFs> {
    let rights = match right {
        PathRight::Read => AccessFs::from_read(KNOWN_ABI),
        PathRight::Write => AccessFs::from_all(KNOWN_ABI),
    };
    match is_directory(path) {
        true => rights,
        false => rights & AccessFs::from_file(KNOWN_ABI),
    }
}

fn is_directory(path: &PathFd) -> bool {
    fs::metadata(proc_fd_path(path)).is_ok_and(|metadata| metadata.is_dir())
}

/// Returns the `/proc` path of an open file, with the real location.
fn proc_fd_path(path: &PathFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", path.as_fd().as_raw_fd()))
}

/// Opens the granted paths. A directory with a hidden descendant is granted entry by entry, as
/// Landlock cannot revoke rights below a grant.
fn open_granted(
    mut pending: Vec<(PathBuf, PathRight)>,
    hidden: &[PathBuf],
) -> Vec<(PathFd, PathRight)> {
    let hidden: Vec<PathBuf> = hidden
        .iter()
        .map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        .collect();
    let (mut opened, mut entries) = (Vec::new(), 0);
    while let Some((path, right)) = pending.pop() {
        let Ok(fd) = PathFd::new(&path) else {
            continue;
        };
        // Ask about the open file: the path may have changed.
        let Ok(real) = fs::read_link(proc_fd_path(&fd)) else {
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
            // A symlink would grant the target.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link && entries <= ENTRIES_MAX {
                pending.push((entry.path(), right));
            }
        }
    }
    opened
}

/// Denies connections to these ports, for this thread and all children.
pub(super) fn deny_ports(ports: &[u16]) -> Result<(), RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessNet::ConnectTcp)?
        .handle_access(AccessFs::Refer)?
        .create()?;
    // Every domain without a `Refer` rule denies moving files between directories, even without any
    // different file rule.
    if let Ok(root) = PathFd::new("/") {
        ruleset = ruleset.add_rule(PathBeneath::new(root, AccessFs::Refer))?;
    }
    for port in (0..=u16::MAX).filter(|port| !ports.contains(port)) {
        ruleset = allow_port(ruleset, port)?;
    }
    ruleset.restrict_self()?;
    Ok(())
}

/// Returns the Landlock ABI of the kernel. The kernel tells it on entering a domain, so a
/// short-lived thread enters an empty domain.
pub(super) fn probe_landlock_abi() -> u32 {
    let status = std::thread::scope(|scope| scope.spawn(enter_empty_domain).join());
    match status {
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

fn enter_empty_domain() -> Result<LandlockStatus, RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::Execute)?;
    Ok(ruleset.create()?.restrict_self()?.landlock)
}
