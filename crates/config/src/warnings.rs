//! Warnings about permitted but questionable settings of servers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bowline_host::spec::Isolation;
use bowline_link::sandbox::SandboxLevel;

use super::config_problem::position_at;
use super::exposed_secrets::is_remote_without_tls;
use super::file::ServerSection;
use super::resolve::ResolveInput;
use super::upstream_config::{ChildConfig, UpstreamConfig};
use super::{Config, ConfigWarning, JournalEngine};
use bowline_core::suggest::nearest_match;

/// Variables for loading foreign code into a program.
const CODE_LOADING_VARIABLES: [&str; 7] = [
    "LD_PRELOAD",
    "LD_AUDIT",
    "NODE_OPTIONS",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "BASH_ENV",
    "DYLD_INSERT_LIBRARIES",
];

/// Directories open in every sandbox, or without files.
const SYSTEM_DIRECTORIES: [&str; 6] = ["/usr", "/bin", "/etc", "/opt", "/proc", "/dev"];

/// Directories not opened although an argument names a file inside.
const SHARED_DIRECTORIES: [&str; 5] = ["/", "/tmp", "/var/tmp", "/var", "/home"];

/// Package options of package runners.
const PACKAGE_OPTIONS: [&str; 3] = ["--package", "-p", "--from"];

/// Other options of package runners with a value.
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

/// Collects warnings about a server section.
pub(super) fn warn_about_server(
    server: &ServerSection,
    name: &str,
    input: ResolveInput<'_>,
    warnings: &mut Vec<ConfigWarning>,
) {
    let mut add = |at: usize, message: String| {
        warnings.push(ConfigWarning {
            position: Some(position_at(input.text, at)),
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
        .filter(|(key, _)| CODE_LOADING_VARIABLES.contains(key))
    {
        add(
            at,
            format!("server `{name}` gets {key}, which can load code into its process"),
        );
    }
    if let Some(url) = server
        .url
        .as_ref()
        .filter(|url| is_remote_without_tls(&url.text))
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
    if let Some((package, pinned)) = find_unpinned_package(&command.text, &args) {
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

/// Warns about patterns that name an unknown server. Such rules stay in force: the server may be
/// added later.
pub(super) fn warn_about_unknown_servers(config: &mut Config) {
    let servers = config.servers.iter().map(|server| &*server.name);
    let names: BTreeSet<&str> = servers
        .chain(config.broken_servers.iter().map(|broken| &*broken.name))
        .collect();
    let mut warnings = Vec::new();
    for mention in &config.pattern_mentions {
        let Some(server) = mention
            .pattern
            .server()
            .filter(|name| !names.contains(name))
        else {
            continue;
        };
        let near = nearest_match(server, names.iter().copied());
        let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let (rule, pattern) = (&mention.rule, &mention.pattern);
        warnings.push(ConfigWarning {
            position: Some(mention.position),
            message: format!(
                "`{pattern}` in `{rule}` names server `{}`, which is not configured{near}",
                server.escape_debug()
            ),
        });
    }
    config.warnings.extend(warnings);
}

/// Warns about queued calls in an engine without durable storage.
pub(super) fn warn_about_memory_queue(config: &mut Config) {
    let mut tools = config
        .servers
        .iter()
        .flat_map(|server| server.tools.values());
    if config.journal == JournalEngine::Memory && tools.any(|rule| rule.queue.is_some()) {
        config.warnings.push(ConfigWarning {
            position: None,
            message: "`journal.engine` is \"memory\": queued calls are lost when the gateway ends"
                .to_owned(),
        });
    }
}

/// Warns about processes shared among principals.
pub(super) fn warn_about_sharing(config: &mut Config) {
    let message = sharing_warning(config);
    config.warnings.extend(message.map(|message| ConfigWarning {
        position: None,
        message,
    }));
}

/// Names the servers that run one process for several principals without explicit `isolation`.
pub(crate) fn sharing_warning(config: &Config) -> Option<String> {
    let principals = config.policy.principals.len();
    let shared = config.servers.iter().filter(|server| {
        matches!(server.upstream, UpstreamConfig::Child(_)) && server.isolation == Isolation::Auto
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

/// Warns about arguments that name paths closed by the sandbox.
pub(super) fn warn_about_sandboxes(config: &mut Config) {
    let mut warnings = Vec::new();
    for server in &config.servers {
        let UpstreamConfig::Child(child) = &server.upstream else {
            continue;
        };
        for argument in find_closed_arguments(child, config.path.as_deref()) {
            warnings.push(ConfigWarning {
                position: None,
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

/// Returns path arguments not granted by the sandbox: under `default` files in closed directories,
/// under `strict` all paths not named in `fs`.
fn find_closed_arguments<'a>(
    child: &'a ChildConfig,
    config: Option<&'a Path>,
) -> impl Iterator<Item = &'a str> {
    let grants = child.sandbox.fs.iter().map(|grant| &grant.path);
    let granted: Vec<&PathBuf> = grants.chain(&child.cwd).collect();
    let args = child.args.iter().map(String::as_str);
    args.filter(move |arg| {
        let path = Path::new(arg);
        let is_named = path.is_absolute() && path.components().count() > 1;
        let is_granted = granted.iter().any(|grant| path.starts_with(grant));
        let is_system = SYSTEM_DIRECTORIES
            .iter()
            .any(|system| path.starts_with(system));
        let is_closed = match child.sandbox.level {
            SandboxLevel::Off => false,
            SandboxLevel::Strict => path.exists(),
            // A file's directory is granted, unless shared or the directory of the config.
            SandboxLevel::Default => {
                let holds = |directory: &Path| config.is_some_and(|at| at.starts_with(directory));
                let is_closed = |directory: &Path| {
                    let is_wide = SHARED_DIRECTORIES
                        .iter()
                        .any(|wide| directory == Path::new(wide));
                    is_wide || holds(directory)
                };
                !path.exists() && path.parent().is_some_and(is_closed)
            }
        };
        is_named && is_closed && !is_granted && !is_system
    })
}

/// Returns an unpinned package of a package runner, with a pinned form.
fn find_unpinned_package<'a>(command: &str, args: &[&'a str]) -> Option<(&'a str, String)> {
    let program = Path::new(command).file_name().and_then(OsStr::to_str)?;
    let (args, is_python) = match (program, args) {
        ("npx" | "bunx", args) => (args, false),
        ("uvx", args) | ("pipx", ["run", args @ ..]) | ("uv", ["tool", "run", args @ ..]) => {
            (args, true)
        }
        ("pnpm" | "yarn", ["dlx", args @ ..]) => (args, false),
        _ => return None,
    };
    let package = find_package(args)?;
    let is_local_or_url = package.contains("://") || package.starts_with(['.', '/', '~', '$']);
    if is_local_or_url {
        return None;
    }
    let (bare, version) = if is_python {
        split_python_version(package)
    } else {
        split_node_version(package)
    };
    // A range or a tag such as `latest` resolves to a different version later.
    if version.starts_with(|first: char| first.is_ascii_digit() || first == '$') {
        return None;
    }
    let sign = if is_python { "==" } else { "@" };
    Some((package, format!("{}{sign}1.2.3", bare.escape_debug())))
}

fn find_package<'a>(args: &[&'a str]) -> Option<&'a str> {
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

/// Splits `@scope/name@1.2.3`; the first sign belongs to the scope.
fn split_node_version(package: &str) -> (&str, &str) {
    match package.rfind('@') {
        Some(at) if at > 0 => {
            let (bare, version) = package.split_at(at);
            (bare, version.trim_start_matches('@'))
        }
        Some(_) | None => (package, ""),
    }
}

/// Splits `name==1.2.3`, `name[extra]==1.2.3` or `name@1.2.3`.
fn split_python_version(package: &str) -> (&str, &str) {
    let parts = package.split_once("==");
    parts
        .or_else(|| package.split_once('@'))
        .unwrap_or((package, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_pinned_form(line: &str, expected: Option<&str>) {
        let words: Vec<_> = line.split_whitespace().collect();
        let (command, args) = words.split_first().unwrap();
        let found = find_unpinned_package(command, args).map(|(_, pinned)| pinned);
        assert_eq!(found.as_deref(), expected, "{line}");
    }

    #[test]
    fn unpinned_package_is_found() {
        assert_pinned_form("npx -y @a/files /srv", Some("@a/files@1.2.3"));
        assert_pinned_form("npx -y @a/files@2025.1.1 /srv", None);
        assert_pinned_form("npx -y files@latest", Some("files@1.2.3"));
        assert_pinned_form("npx -y files@^1.0.0", Some("files@1.2.3"));
        assert_pinned_form("npx --package=files@1.0.0 run", None);
        assert_pinned_form("npx -p files run", Some("files@1.2.3"));
        assert_pinned_form("/usr/bin/npx files", Some("files@1.2.3"));
        assert_pinned_form("uvx mcp-time", Some("mcp-time==1.2.3"));
        assert_pinned_form("uvx mcp-time==1.0", None);
        assert_pinned_form("uvx mcp-time@1.0", None);
        assert_pinned_form(
            "uvx --python 3.12 --from mcp[cli] run",
            Some("mcp[cli]==1.2.3"),
        );
        assert_pinned_form("uvx --from git+https://x.example/y z", None);
        assert_pinned_form("pipx run tool", Some("tool==1.2.3"));
        assert_pinned_form("pnpm dlx tool", Some("tool@1.2.3"));
        assert_pinned_form("pnpm start", None);
        assert_pinned_form("node index.js", None);
        assert_pinned_form("npx ./local", None);
        assert_pinned_form("npx", None);
    }
}
