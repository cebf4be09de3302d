//! Granted paths of a sandbox policy, by level.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::enforce::ConfinedProgram;
use super::{FsAccess, SandboxLevel, SandboxPolicy};

/// Right to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathRight {
    Read,
    Write,
}

/// System programs and libraries, readable at every level, as required by every program.
const PROGRAM_DIRS: [&str; 9] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/gnu/store",
];

/// Further readable paths at level `default`.
const SYSTEM_DIRS: [&str; 11] = [
    "/etc",
    "/opt",
    "/proc",
    "/sys",
    "/snap",
    "/var/lib/snapd/snap",
    "/var/lib/ca-certificates",
    "/var/cache/fontconfig",
    "/run/systemd/resolve",
    "/run/current-system",
    "/home/linuxbrew/.linuxbrew",
];

/// Files of `/etc` for the program loader.
const LOADER_FILES: [&str; 3] = ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives"];

/// Stateless devices.
const DEVICES: [&str; 5] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// Further devices at level `default`: terminals and shared memory.
const MORE_DEVICES: [&str; 4] = ["/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm"];

/// Below the home directory: program versions and package manager settings.
const HOME_READ: [&str; 22] = [
    ".nvm",
    ".volta",
    ".asdf",
    ".fnm",
    ".pyenv",
    ".rbenv",
    ".sdkman",
    ".rustup",
    ".cargo/bin",
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".config/uv",
    ".config/pip",
    ".config/git",
    ".gitconfig",
    ".npmrc",
    ".nix-profile",
];

/// Below the home directory: package manager caches.
const HOME_CACHES: [&str; 17] = [
    ".npm",
    ".bun",
    ".deno",
    ".yarn",
    ".local/share/uv",
    ".cache/uv",
    ".cache/pip",
    ".cache/node",
    ".cache/node-gyp",
    ".cache/pnpm",
    ".cache/yarn",
    ".cache/deno",
    ".cache/go-build",
    ".cache/huggingface",
    ".cache/ms-playwright",
    ".cache/puppeteer",
    ".cache/fontconfig",
];

/// Caches to create for a package runner: only existing paths can be granted.
const RUNNER_CACHES: [(&str, &[&str]); 8] = [
    ("npx", &[".npm"]),
    ("npm", &[".npm"]),
    ("node", &[".npm"]),
    ("uvx", &[".cache/uv", ".local/share/uv"]),
    ("uv", &[".cache/uv", ".local/share/uv"]),
    ("bunx", &[".bun"]),
    ("pnpm", &[".cache/pnpm"]),
    ("deno", &[".cache/deno"]),
];

/// Directories shared by many owners.
const SHARED_DIRS: [&str; 5] = ["/", "/tmp", "/var/tmp", "/var", "/home"];

/// Variables without granted paths.
const IGNORED_VARIABLES: [&str; 7] = [
    "HOME",
    "PWD",
    "OLDPWD",
    "SHELL",
    "PATH",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// Files in a project directory, the module source of scripts.
const PROJECT_FILES: [&str; 4] = ["node_modules", "package.json", "pyproject.toml", ".venv"];

/// Search levels above a script for the project directory.
const PROJECT_DEPTH_MAX: usize = 4;

/// Bytes of a program to search for an interpreter.
const SHEBANG_BYTES_MAX: u64 = 256;

/// Separators of shell words, and of options and values.
const WORD_SEPARATORS: &[u8] = b" \t\n=;&|()<>'\"`,:";

/// Possible paths per argument.
const WORDS_MAX: usize = 64;

/// Longest possible path.
const PATH_BYTES_MAX: usize = 4_096;

/// Returns all granted paths, including missing paths.
pub(super) fn granted_paths(
    sandbox: &SandboxPolicy,
    program: &ConfinedProgram<'_>,
) -> Vec<(PathBuf, PathRight)> {
    let mut grants = PathGrants::new();
    grants.allow_read(PROGRAM_DIRS);
    grants.allow_write(DEVICES);
    grants.add_program(program.command);
    grants.0.push((program.temp.to_owned(), PathRight::Write));
    for grant in &sandbox.fs {
        let right = match grant.access {
            FsAccess::ReadOnly => PathRight::Read,
            FsAccess::ReadWrite => PathRight::Write,
        };
        grants.0.push((grant.path.clone(), right));
    }
    match sandbox.level {
        SandboxLevel::Strict => grants.allow_read(LOADER_FILES),
        SandboxLevel::Off | SandboxLevel::Default => grants.add_defaults(program),
    }
    grants.0
}

#[derive(Debug)]
struct PathGrants(Vec<(PathBuf, PathRight)>, Option<PathBuf>);

impl PathGrants {
    fn new() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Self(Vec::new(), home.filter(|home| home.is_absolute()))
    }

    fn allow_read<const N: usize>(&mut self, paths: [&str; N]) {
        self.0
            .extend(paths.map(|path| (path.into(), PathRight::Read)));
    }

    fn allow_write<const N: usize>(&mut self, paths: [&str; N]) {
        self.0
            .extend(paths.map(|path| (path.into(), PathRight::Write)));
    }

    /// Adds the grants of level `default` beyond `strict`.
    fn add_defaults(&mut self, program: &ConfinedProgram<'_>) {
        self.allow_read(SYSTEM_DIRS);
        self.allow_write(MORE_DEVICES);
        if let Some(home) = self.1.clone() {
            create_caches(&home, program.command);
            let read = HOME_READ.map(|path| (home.join(path), PathRight::Read));
            let caches = HOME_CACHES.map(|path| (home.join(path), PathRight::Write));
            self.0.extend(read.into_iter().chain(caches));
        }
        let cwd = std::env::current_dir().ok();
        if let Some(cwd) = cwd.as_ref().filter(|cwd| !self.is_shared_dir(cwd)) {
            self.0.push((cwd.clone(), PathRight::Write));
        }
        for arg in program.args {
            self.add_named_paths(arg, cwd.as_deref());
        }
        let values = std::env::vars_os();
        for (_, value) in
            values.filter(|(name, _)| !IGNORED_VARIABLES.iter().any(|other| name == other))
        {
            self.add_named_paths(&value, None);
        }
    }

    /// Grants the paths in an argument or a variable, including options and shell text: the owner
    /// chose the paths for the server.
    fn add_named_paths(&mut self, text: &OsStr, cwd: Option<&Path>) {
        let words = text.as_bytes().split(|byte| WORD_SEPARATORS.contains(byte));
        let words = words.filter(|word| word.starts_with(b"/")).take(WORDS_MAX);
        for text in std::iter::once(text.as_bytes()).chain(words) {
            if text.len() > PATH_BYTES_MAX {
                continue;
            }
            let path = Path::new(OsStr::from_bytes(text));
            let path = match cwd {
                _ if path.is_absolute() => path.to_owned(),
                Some(cwd) if !text.is_empty() => cwd.join(path),
                _ => continue,
            };
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() && is_path_like(text) => {
                    if path != Path::new("/") {
                        self.0.push((path, PathRight::Write));
                    }
                }
                Ok(metadata) if metadata.is_file() => self.add_file(&path),
                // The server may create the file.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_path_like(text) => {
                    self.add_parent_dir(&path);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Grants the directory of a file: a database writes beside the file.
    fn add_parent_dir(&mut self, path: &Path) {
        let directory = path
            .parent()
            .filter(|directory| !self.is_shared_dir(directory));
        self.0
            .extend(directory.map(|directory| (directory.to_owned(), PathRight::Write)));
    }

    /// Grants a file and the directory, and read access to the project for loading scripts.
    fn add_file(&mut self, path: &Path) {
        self.0.push((path.to_owned(), PathRight::Write));
        self.add_parent_dir(path);
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        for path in [path, &real] {
            let above = path.ancestors().skip(1).take(PROJECT_DEPTH_MAX);
            let above = above.take_while(|directory| !self.is_shared_dir(directory));
            let above: Vec<&Path> = above.collect();
            let project = above.iter().rev().find(|directory| {
                PROJECT_FILES
                    .iter()
                    .any(|file_name| directory.join(file_name).exists())
            });
            // An installed package loads sibling packages, at any script depth.
            let project = outer_node_modules(path).or_else(|| project.copied());
            if let Some(directory) = project {
                self.0.push((directory.to_owned(), PathRight::Read));
            }
        }
    }

    /// Grants the program and the installation tree.
    fn add_program(&mut self, command: &OsStr) {
        let Some(program) = find_program(command) else {
            return;
        };
        self.add_install_tree(&program);
        if let Some(interpreter) = find_interpreter(&program) {
            self.add_install_tree(&interpreter);
        }
    }

    fn add_install_tree(&mut self, program: &Path) {
        let real = fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
        for path in [program, &real] {
            if let Some(modules) = outer_node_modules(path) {
                self.0.push((modules.to_owned(), PathRight::Read));
                continue;
            }
            let Some(directory) = path.parent() else {
                continue;
            };
            if self.is_shared_dir(directory) {
                self.0.push((path.to_owned(), PathRight::Read));
                continue;
            }
            self.0.push((directory.to_owned(), PathRight::Read));
            if directory.ends_with("bin")
                && let Some(prefix) = directory.parent()
            {
                let beside = ["lib", "lib64", "libexec", "include", "pyvenv.cfg"];
                let beside = beside.map(|name| (prefix.join(name), PathRight::Read));
                self.0.extend(beside);
            }
        }
    }

    /// Whether a directory is shared by many owners.
    fn is_shared_dir(&self, directory: &Path) -> bool {
        let home = self.1.as_ref();
        SHARED_DIRS.iter().any(|wide| directory == Path::new(wide))
            || home.is_some_and(|home| home.starts_with(directory))
    }
}

/// Returns the outermost `node_modules` above a path: all packages of an installation.
fn outer_node_modules(path: &Path) -> Option<&Path> {
    let modules = path
        .ancestors()
        .filter(|above| above.ends_with("node_modules"));
    modules.last()
}

/// Whether a text certainly means a path.
fn is_path_like(text: &[u8]) -> bool {
    text.starts_with(b"/") || text.starts_with(b".")
}

/// Finds a program in `PATH`.
fn find_program(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(command));
    candidates.find(|path| path.is_file())
}

/// Returns the interpreter from the shebang line of a script.
fn find_interpreter(script: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    let file = fs::File::open(script).ok()?;
    file.take(SHEBANG_BYTES_MAX).read_to_end(&mut head).ok()?;
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let first = PathBuf::from(words.next()?);
    match first.ends_with("env") {
        true => find_program(words.find(|word| !word.as_bytes().starts_with(b"-"))?),
        false => Some(first),
    }
}

/// Creates the missing caches of a package runner.
fn create_caches(home: &Path, command: &OsString) {
    let name = Path::new(command).file_name().unwrap_or_default();
    for (runner, caches) in RUNNER_CACHES {
        if name == runner {
            for cache in caches {
                // On failure, the runner reports the error itself.
                let _ = fs::create_dir_all(home.join(cache));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_script_can_read_sibling_packages() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("node_modules");
        let script = modules.join("@scope/server/dist/index.js");
        fs::create_dir_all(script.parent().unwrap()).unwrap();
        fs::write(modules.join("@scope/server/package.json"), "{}").unwrap();
        fs::write(&script, "").unwrap();
        let mut grants = PathGrants::new();
        grants.add_named_paths(script.as_os_str(), None);
        let granted = |path: &Path| grants.0.contains(&(path.to_owned(), PathRight::Read));
        assert!(granted(&modules), "{grants:?}");
        assert!(!granted(folder.path()), "{grants:?}");
    }
}
