//! What is allowed but should be looked at, server by server.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bowline_host::spec::Isolation;
use bowline_link::sandbox::Level;

use super::exposure::is_plain_elsewhere;
use super::file::Server;
use super::frame::place;
use super::reach::{Child, Reach};
use super::resolve::Origin;
use super::suggest::nearest;
use super::{Config, Engine, Warning};

/// Variables that make a program load code it does not name.
const LOADERS: [&str; 7] = [
    "LD_PRELOAD",
    "LD_AUDIT",
    "NODE_OPTIONS",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "BASH_ENV",
    "DYLD_INSERT_LIBRARIES",
];

/// Directories that every sandbox opens, or that hold no files.
const SYSTEM: [&str; 6] = ["/usr", "/bin", "/etc", "/opt", "/proc", "/dev"];

/// Directories that are not opened because a file in them is named.
const WIDE: [&str; 5] = ["/", "/tmp", "/var/tmp", "/var", "/home"];

/// Options of package runners that name the package.
const PACKAGE_OPTIONS: [&str; 3] = ["--package", "-p", "--from"];

/// Options of package runners that take a value which is no package.
const VALUE_OPTIONS: [&str; 8] = [
    "--python",
    "--with",
    "--index",
    "--index-url",
    "--registry",
    "--cache",
    "--userconfig",
    "--directory",
];

/// Writes down what a server's entry should not say.
pub(super) fn warn(server: &Server, name: &str, origin: Origin<'_>, warnings: &mut Vec<Warning>) {
    let mut add = |at: usize, message: String| {
        warnings.push(Warning {
            place: Some(place(origin.text, at)),
            message,
        });
    };
    if name != server.name {
        let written = server.name.escape_debug();
        add(
            server.name_span.start,
            format!("server \"{written}\" is called `{name}` here"),
        );
    }
    let set = server
        .env
        .iter()
        .map(|(key, value)| (key.as_str(), value.span.start));
    let inherited = server
        .inherit_env
        .iter()
        .map(|key| (key.text.as_str(), key.span.start));
    for (key, at) in set
        .chain(inherited)
        .filter(|(key, _)| LOADERS.contains(key))
    {
        add(
            at,
            format!("server `{name}` gets {key}, which can load code into its process"),
        );
    }
    if let Some(url) = server
        .url
        .as_ref()
        .filter(|url| is_plain_elsewhere(&url.text))
    {
        add(
            url.span.start,
            format!(
                "server `{name}` is reached over plain http: everybody on the way can read and \
                 change what is said"
            ),
        );
    }
    let Some(command) = &server.command else {
        return;
    };
    let args: Vec<&str> = server.args.iter().map(|arg| arg.text.as_str()).collect();
    if let Some((package, pinned)) = unpinned(&command.text, &args) {
        let package = package.escape_debug();
        add(
            command.span.start,
            format!(
                "server `{name}` runs whatever `{package}` is on the day it starts; \
                 pin it: `{pinned}`"
            ),
        );
    }
}

/// Tells of patterns that name a server that is not there. They stay in force: it may come later.
pub(super) fn warn_of_strangers(config: &mut Config) {
    let servers = config.servers.iter().map(|server| &*server.name);
    let names: BTreeSet<&str> = servers
        .chain(config.broken.iter().map(|broken| &*broken.name))
        .collect();
    let mut warnings = Vec::new();
    for mention in &config.mentions {
        let Some(server) = mention
            .pattern
            .server()
            .filter(|name| !names.contains(name))
        else {
            continue;
        };
        let near = nearest(server, names.iter().copied());
        let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let (rule, pattern) = (&mention.rule, &mention.pattern);
        warnings.push(Warning {
            place: Some(mention.place),
            message: format!(
                "`{pattern}` in `{rule}` names server `{}`, which is not configured{near}",
                server.escape_debug()
            ),
        });
    }
    config.warnings.extend(warnings);
}

/// Tells of calls that are queued by an engine that forgets them.
pub(super) fn warn_of_forgetting(config: &mut Config) {
    let mut tools = config
        .servers
        .iter()
        .flat_map(|server| server.tools.values());
    if config.journal == Engine::Memory && tools.any(|rule| rule.queue.is_some()) {
        config.warnings.push(Warning {
            place: None,
            message: "`journal.engine` is \"memory\": queued calls are lost when the gateway ends"
                .to_owned(),
        });
    }
}

/// Tells of processes that keep what one principal did where another one comes.
pub(super) fn warn_of_sharing(config: &mut Config) {
    let message = sharing(config);
    config.warnings.extend(message.map(|message| Warning {
        place: None,
        message,
    }));
}

/// Names the servers that are one process for several principals without having been told so.
pub(crate) fn sharing(config: &Config) -> Option<String> {
    let principals = config.policy.principals.len();
    let shared = config.servers.iter().filter(|server| {
        matches!(server.reach, Reach::Child(_)) && server.isolation == Isolation::Auto
    });
    let shared: Vec<&str> = shared.map(|server| &*server.name).collect();
    if principals < 2 || shared.is_empty() {
        return None;
    }
    Some(format!(
        "one process serves all {principals} principals, with what it remembers: {}; \
         say isolation = \"principal\", or \"shared\" where that is meant",
        shared.join(", ")
    ))
}

/// Tells of arguments that name what a sandbox keeps closed.
pub(super) fn warn_of_sandboxes(config: &mut Config) {
    let mut warnings = Vec::new();
    for server in &config.servers {
        let Reach::Child(child) = &server.reach else {
            continue;
        };
        for argument in closed_arguments(child, config.path.as_deref()) {
            warnings.push(Warning {
                place: None,
                message: format!(
                    "server `{}`: argument {argument} is closed under sandbox = \"{}\"; \
                     add its directory to `fs`",
                    server.name,
                    child.sandbox.level.as_str()
                ),
            });
        }
    }
    config.warnings.extend(warnings);
}

/// Returns the arguments that are paths which the sandbox does not grant: under `default` files
/// that cannot be made, under `strict` all that `fs` does not name.
fn closed_arguments<'a>(
    child: &'a Child,
    config: Option<&'a Path>,
) -> impl Iterator<Item = &'a str> {
    let grants = child.sandbox.fs.iter().map(|grant| &grant.path);
    let granted: Vec<&PathBuf> = grants.chain(&child.cwd).collect();
    let args = child.args.iter().map(String::as_str);
    args.filter(move |arg| {
        let path = Path::new(arg);
        let is_named = path.is_absolute() && path.components().count() > 1;
        let is_granted = granted.iter().any(|grant| path.starts_with(grant));
        let is_system = SYSTEM.iter().any(|system| path.starts_with(system));
        let is_closed = match child.sandbox.level {
            Level::Off => false,
            Level::Strict => path.exists(),
            // The directory of a file is granted, unless it is everybody's or holds the config.
            Level::Default => {
                let holds = |directory: &Path| config.is_some_and(|at| at.starts_with(directory));
                let is_closed = |directory: &Path| {
                    let is_wide = WIDE.iter().any(|wide| directory == Path::new(wide));
                    is_wide || holds(directory)
                };
                !path.exists() && path.parent().is_some_and(is_closed)
            }
        };
        is_named && is_closed && !is_granted && !is_system
    })
}

/// Returns the package that a package runner fetches in whatever version is newest, and how it
/// would be pinned.
fn unpinned<'a>(command: &str, args: &[&'a str]) -> Option<(&'a str, String)> {
    let program = Path::new(command).file_name().and_then(OsStr::to_str)?;
    let (args, is_python) = match (program, args) {
        ("npx" | "bunx", args) => (args, false),
        ("uvx", args) | ("pipx", ["run", args @ ..]) | ("uv", ["tool", "run", args @ ..]) => {
            (args, true)
        }
        ("pnpm" | "yarn", ["dlx", args @ ..]) => (args, false),
        _ => return None,
    };
    let package = package(args)?;
    let is_elsewhere = package.contains("://") || package.starts_with(['.', '/', '~', '$']);
    if is_elsewhere {
        return None;
    }
    let (bare, version) = if is_python {
        split_python(package)
    } else {
        split_node(package)
    };
    // A range or a tag such as `latest` means another version tomorrow.
    if version.starts_with(|first: char| first.is_ascii_digit() || first == '$') {
        return None;
    }
    let sign = if is_python { "==" } else { "@" };
    Some((package, format!("{}{sign}1.2.3", bare.escape_debug())))
}

fn package<'a>(args: &[&'a str]) -> Option<&'a str> {
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let (option, value) = match arg.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (arg, None),
        };
        if PACKAGE_OPTIONS.contains(&option) {
            return value.or_else(|| args.next());
        }
        if VALUE_OPTIONS.contains(&arg) {
            args.next();
        } else if !arg.starts_with('-') {
            return Some(arg);
        }
    }
    None
}

/// `@scope/name@1.2.3`; the first sign belongs to the scope.
fn split_node(package: &str) -> (&str, &str) {
    match package.rfind('@') {
        Some(at) if at > 0 => {
            let (bare, version) = package.split_at(at);
            (bare, version.trim_start_matches('@'))
        }
        Some(_) | None => (package, ""),
    }
}

/// `name==1.2.3`, `name[extra]==1.2.3` or `name@1.2.3`.
fn split_python(package: &str) -> (&str, &str) {
    let parts = package.split_once("==");
    parts
        .or_else(|| package.split_once('@'))
        .unwrap_or((package, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Option<&str>) {
        let words: Vec<_> = line.split_whitespace().collect();
        let (command, args) = words.split_first().unwrap();
        let found = unpinned(command, args).map(|(_, pinned)| pinned);
        assert_eq!(found.as_deref(), expected, "{line}");
    }

    #[test]
    fn a_package_without_a_version_is_found_and_a_pinned_one_is_not() {
        check("npx -y @a/files /srv", Some("@a/files@1.2.3"));
        check("npx -y @a/files@2025.1.1 /srv", None);
        check("npx -y files@latest", Some("files@1.2.3"));
        check("npx -y files@^1.0.0", Some("files@1.2.3"));
        check("npx --package=files@1.0.0 run", None);
        check("npx -p files run", Some("files@1.2.3"));
        check("/usr/bin/npx files", Some("files@1.2.3"));
        check("uvx mcp-time", Some("mcp-time==1.2.3"));
        check("uvx mcp-time==1.0", None);
        check("uvx mcp-time@1.0", None);
        check(
            "uvx --python 3.12 --from mcp[cli] run",
            Some("mcp[cli]==1.2.3"),
        );
        check("uvx --from git+https://x.example/y z", None);
        check("pipx run tool", Some("tool==1.2.3"));
        check("pnpm dlx tool", Some("tool@1.2.3"));
        check("pnpm start", None);
        check("node index.js", None);
        check("npx ./local", None);
        check("npx", None);
    }
}
