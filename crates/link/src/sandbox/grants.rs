//! Which paths a server is granted, by the level of its sandbox.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::enforce::Confined;
use super::{FsAccess, Level, Sandbox};

/// What a path is granted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Read,
    Write,
}

/// Programs of the system and what they load; read at every level, since nothing runs without.
const PROGRAMS: [&str; 9] = [
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

/// More that is read where the level is `default`.
const SYSTEM: [&str; 11] = [
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

/// What the loader of programs reads of `/etc`.
const LOADER: [&str; 3] = ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives"];

/// Devices without a memory.
const DEVICES: [&str; 5] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// More devices where the level is `default`: terminals, and memory that processes share.
const MORE_DEVICES: [&str; 4] = ["/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm"];

/// Below the home directory: versions of programs, and settings of package managers.
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

/// Below the home directory: what package managers keep.
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

/// Caches that a package runner must be able to make: nothing can be granted that is not there.
const MADE_FOR: [(&str, &[&str]); 8] = [
    ("npx", &[".npm"]),
    ("npm", &[".npm"]),
    ("node", &[".npm"]),
    ("uvx", &[".cache/uv", ".local/share/uv"]),
    ("uv", &[".cache/uv", ".local/share/uv"]),
    ("bunx", &[".bun"]),
    ("pnpm", &[".cache/pnpm"]),
    ("deno", &[".cache/deno"]),
];

/// Directories that are nobody's own tree.
const WIDE: [&str; 5] = ["/", "/tmp", "/var/tmp", "/var", "/home"];

/// Variables whose paths say where something is, not that it is wanted.
const NOT_NAMED: [&str; 7] = [
    "HOME",
    "PWD",
    "OLDPWD",
    "SHELL",
    "PATH",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// What marks the directory of a project, in which its scripts find what they load.
const PROJECT_MARKS: [&str; 4] = ["node_modules", "package.json", "pyproject.toml", ".venv"];

/// How far above a script the directory of its project is looked for.
const PROJECT_DEPTH_MAX: usize = 4;

/// Of a program so much is read to find its interpreter.
const SHEBANG_BYTES_MAX: u64 = 256;

/// What stands between the words of a shell, or an option and its value.
const BETWEEN: &[u8] = b" \t\n=;&|()<>'\"`,:";

/// Words of one argument that may be paths.
const WORDS_MAX: usize = 64;

/// The longest text that may be a path.
const PATH_BYTES_MAX: usize = 4_096;

/// Returns all that is granted, what does not exist included.
pub(super) fn wanted(sandbox: &Sandbox, program: &Confined<'_>) -> Vec<(PathBuf, Right)> {
    let mut grants = Grants::new();
    grants.read(PROGRAMS);
    grants.write(DEVICES);
    grants.program(program.command);
    grants.0.push((program.temp.to_owned(), Right::Write));
    for grant in &sandbox.fs {
        let right = match grant.access {
            FsAccess::ReadOnly => Right::Read,
            FsAccess::ReadWrite => Right::Write,
        };
        grants.0.push((grant.path.clone(), right));
    }
    match sandbox.level {
        Level::Strict => grants.read(LOADER),
        Level::Off | Level::Default => grants.usual(program),
    }
    grants.0
}

#[derive(Debug)]
struct Grants(Vec<(PathBuf, Right)>, Option<PathBuf>);

impl Grants {
    fn new() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Self(Vec::new(), home.filter(|home| home.is_absolute()))
    }

    fn read<const N: usize>(&mut self, paths: [&str; N]) {
        self.0.extend(paths.map(|path| (path.into(), Right::Read)));
    }

    fn write<const N: usize>(&mut self, paths: [&str; N]) {
        self.0.extend(paths.map(|path| (path.into(), Right::Write)));
    }

    /// All that `default` has beyond `strict`.
    fn usual(&mut self, program: &Confined<'_>) {
        self.read(SYSTEM);
        self.write(MORE_DEVICES);
        if let Some(home) = self.1.clone() {
            make_caches(&home, program.command);
            let read = HOME_READ.map(|path| (home.join(path), Right::Read));
            let caches = HOME_CACHES.map(|path| (home.join(path), Right::Write));
            self.0.extend(read.into_iter().chain(caches));
        }
        let cwd = std::env::current_dir().ok();
        if let Some(cwd) = cwd.as_ref().filter(|cwd| !self.is_wide(cwd)) {
            self.0.push((cwd.clone(), Right::Write));
        }
        for arg in program.args {
            self.named(arg, cwd.as_deref());
        }
        let values = std::env::vars_os();
        for (_, value) in values.filter(|(name, _)| !NOT_NAMED.iter().any(|other| name == other)) {
            self.named(&value, None);
        }
    }

    /// Grants the paths in an argument or a variable, be it an option or the text of a shell: the
    /// owner has written them there for the server to use.
    fn named(&mut self, text: &OsStr, cwd: Option<&Path>) {
        let words = text.as_bytes().split(|byte| BETWEEN.contains(byte));
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
                Ok(found) if found.is_dir() && is_path(text) => {
                    if path != Path::new("/") {
                        self.0.push((path, Right::Write));
                    }
                }
                Ok(found) if found.is_file() => self.file(&path),
                // It is to be made.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_path(text) => {
                    self.directory_of(&path);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Grants the directory of a file: a database writes beside itself.
    fn directory_of(&mut self, path: &Path) {
        let directory = path.parent().filter(|directory| !self.is_wide(directory));
        self.0
            .extend(directory.map(|directory| (directory.to_owned(), Right::Write)));
    }

    /// Grants a file with its directory, and to read its project: a script loads from there.
    fn file(&mut self, path: &Path) {
        self.0.push((path.to_owned(), Right::Write));
        self.directory_of(path);
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        for path in [path, &real] {
            let above = path.ancestors().skip(1).take(PROJECT_DEPTH_MAX);
            let above = above.take_while(|directory| !self.is_wide(directory));
            let above: Vec<&Path> = above.collect();
            let project = above.iter().rev().find(|directory| {
                PROJECT_MARKS
                    .iter()
                    .any(|mark| directory.join(mark).exists())
            });
            // An installed package loads its siblings, however deep its own script is.
            let project = installed_modules(path).or_else(|| project.copied());
            if let Some(directory) = project {
                self.0.push((directory.to_owned(), Right::Read));
            }
        }
    }

    /// Grants the program itself, with the tree it was installed as.
    fn program(&mut self, command: &OsStr) {
        let Some(found) = find(command) else {
            return;
        };
        self.tree(&found);
        if let Some(interpreter) = interpreter(&found) {
            self.tree(&interpreter);
        }
    }

    fn tree(&mut self, program: &Path) {
        let real = fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
        for path in [program, &real] {
            if let Some(modules) = installed_modules(path) {
                self.0.push((modules.to_owned(), Right::Read));
                continue;
            }
            let Some(directory) = path.parent() else {
                continue;
            };
            if self.is_wide(directory) {
                self.0.push((path.to_owned(), Right::Read));
                continue;
            }
            self.0.push((directory.to_owned(), Right::Read));
            if directory.ends_with("bin")
                && let Some(prefix) = directory.parent()
            {
                let beside = ["lib", "lib64", "libexec", "include", "pyvenv.cfg"];
                let beside = beside.map(|name| (prefix.join(name), Right::Read));
                self.0.extend(beside);
            }
        }
    }

    /// Whether a directory is the home of more than one thing.
    fn is_wide(&self, directory: &Path) -> bool {
        let home = self.1.as_ref();
        WIDE.iter().any(|wide| directory == Path::new(wide))
            || home.is_some_and(|home| home.starts_with(directory))
    }
}

/// Returns the outermost `node_modules` that a path is in: all packages of one installation.
fn installed_modules(path: &Path) -> Option<&Path> {
    let modules = path
        .ancestors()
        .filter(|above| above.ends_with("node_modules"));
    modules.last()
}

/// Whether a text that names a directory was surely meant as one.
fn is_path(text: &[u8]) -> bool {
    text.starts_with(b"/") || text.starts_with(b".")
}

/// Looks a program up as the system does.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(command));
    found.find(|path| path.is_file())
}

/// Returns the program that a script names in its first line.
fn interpreter(script: &Path) -> Option<PathBuf> {
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
        true => find(words.find(|word| !word.as_bytes().starts_with(b"-"))?),
        false => Some(first),
    }
}

/// Makes the caches that a package runner fills, where they are not there yet.
fn make_caches(home: &Path, command: &OsString) {
    let name = Path::new(command).file_name().unwrap_or_default();
    for (runner, caches) in MADE_FOR {
        if name == runner {
            for cache in caches {
                // Where it cannot be made, the runner says so better than we could.
                let _ = fs::create_dir_all(home.join(cache));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_of_a_package_may_load_its_siblings() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("node_modules");
        let script = modules.join("@scope/server/dist/index.js");
        fs::create_dir_all(script.parent().unwrap()).unwrap();
        fs::write(modules.join("@scope/server/package.json"), "{}").unwrap();
        fs::write(&script, "").unwrap();
        let mut grants = Grants::new();
        grants.named(script.as_os_str(), None);
        let granted = |path: &Path| grants.0.contains(&(path.to_owned(), Right::Read));
        assert!(granted(&modules), "{grants:?}");
        assert!(!granted(folder.path()), "{grants:?}");
    }
}
