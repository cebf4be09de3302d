//! Builds the spec of a server's child process: environment, reaper and sandbox.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bowline_host::spec::{CHILD_ENV, ChildSpec};
use bowline_link::sandbox::{LandlockSupport, SandboxPolicy};

use bowline_config::{ChildConfig, Config, EnvVars};

/// Settings shared by all child processes.
#[derive(Debug)]
pub(crate) struct ChildDefaults {
    /// The path of the `bowline` binary, which serves as reaper.
    own_path: PathBuf,
    /// Sandbox features of the kernel.
    kernel: LandlockSupport,
    state_dir: PathBuf,
}

impl ChildDefaults {
    /// Probes the kernel for sandbox features.
    pub(crate) fn new(own_path: PathBuf, state: &Path) -> Self {
        let kernel = LandlockSupport::probe();
        if kernel.landlock_abi == 0 {
            tracing::warn!("the kernel has no Landlock: servers run without a sandbox");
        }
        let state_dir = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
        Self {
            own_path,
            kernel,
            state_dir,
        }
    }

    pub(crate) const fn landlock_abi(&self) -> u32 {
        self.kernel.landlock_abi
    }

    /// Returns the paths that no server may open: the state directory, the config file, and the
    /// usual directory of the config file.
    pub(crate) fn hidden_paths(&self, config: &Config, env: &EnvVars) -> Vec<PathBuf> {
        let file = config.path.as_ref();
        let file = file.and_then(|path| std::path::absolute(path).ok());
        let usual = env.xdg_directory("XDG_CONFIG_HOME", ".config");
        [Some(self.state_dir.clone()), file, usual]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// What the spec of a child process depends on, besides the child's own config.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildSpecContext<'a> {
    /// Settings shared by all child processes.
    pub(crate) defaults: &'a ChildDefaults,
    /// Paths that no server may open.
    pub(crate) hidden: &'a [PathBuf],
    /// The environment of the gateway.
    pub(crate) env: &'a EnvVars,
}

/// Translates the config of a child process into its spec.
pub(crate) fn build_child_spec(child: &ChildConfig, context: ChildSpecContext<'_>) -> ChildSpec {
    let defaults = context.defaults;
    let sandbox = SandboxPolicy {
        hidden: context.hidden.to_vec(),
        ..child.sandbox.clone()
    };
    ChildSpec {
        command: child.command.clone(),
        args: child.args.iter().map(OsString::from).collect(),
        env: build_child_env(child, context.env),
        cwd: child.cwd.clone(),
        limits: child.limits,
        sandbox_lacks: defaults.kernel.find_gap(&sandbox),
        sandbox,
        reaper: cfg!(target_os = "linux")
            .then(|| (defaults.own_path.clone(), vec!["__reaper".into()])),
    }
}

/// Builds the full environment of a child. Variables set in the file win over inherited ones.
fn build_child_env(child: &ChildConfig, env: &EnvVars) -> Vec<(OsString, OsString)> {
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
