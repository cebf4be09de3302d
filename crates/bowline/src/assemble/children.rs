//! How the child process of a server is started: its environment, its reaper, its sandbox.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bowline_host::spec::{CHILD_ENV, ChildSpec};
use bowline_link::sandbox::{Kernel, Sandbox};

use crate::config::{Child, Config, Env};

/// What all children are started with.
#[derive(Debug)]
pub(crate) struct Ground {
    /// The path of this program.
    own: PathBuf,
    /// What the kernel can do for sandboxes.
    kernel: Kernel,
    state: PathBuf,
}

impl Ground {
    /// Finds out what the kernel can do.
    pub(crate) fn new(own: PathBuf, state: &Path) -> Self {
        let kernel = Kernel::probe();
        if kernel.landlock_abi == 0 {
            tracing::warn!("the kernel has no Landlock: servers run without a sandbox");
        }
        let state = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
        Self { own, kernel, state }
    }

    pub(crate) const fn landlock_abi(&self) -> u32 {
        self.kernel.landlock_abi
    }

    /// Returns what no server may open: the state directory, the configuration file, and the
    /// directory where it usually stands.
    pub(crate) fn hidden(&self, config: &Config, env: &Env) -> Vec<PathBuf> {
        let file = config.path.as_ref();
        let file = file.and_then(|path| std::path::absolute(path).ok());
        let usual = env.directory("XDG_CONFIG_HOME", ".config");
        [Some(self.state.clone()), file, usual]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Returns how a child is started.
pub(crate) fn child_of(
    child: &Child,
    (ground, hidden): (&Ground, &[PathBuf]),
    env: &Env,
) -> ChildSpec {
    let sandbox = Sandbox {
        hidden: hidden.to_vec(),
        ..child.sandbox.clone()
    };
    ChildSpec {
        command: child.command.clone(),
        args: child.args.iter().map(OsString::from).collect(),
        env: child_env(child, env),
        cwd: child.cwd.clone(),
        limits: child.limits,
        sandbox_lacks: ground.kernel.lacks(&sandbox),
        sandbox,
        reaper: cfg!(target_os = "linux").then(|| (ground.own.clone(), vec!["__reaper".into()])),
    }
}

/// Returns the whole environment of a child. What the file sets wins over what is inherited.
fn child_env(child: &Child, env: &Env) -> Vec<(OsString, OsString)> {
    let inherited = CHILD_ENV
        .iter()
        .copied()
        .chain(child.inherit_env.iter().map(String::as_str))
        .filter(|name| !child.env.contains_key(*name))
        .filter_map(|name| Some((name.into(), env.raw(name)?.to_owned())));
    let set = child
        .env
        .iter()
        .map(|(name, value)| (name.into(), value.into()));
    inherited.chain(set).collect()
}
