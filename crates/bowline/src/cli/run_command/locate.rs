//! Locates the prerequisites of a run: client program, config, endpoint.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bowline_api::status::StatusResponse;

use crate::cli::CommandContext;
use crate::cli::api_client::{ApiClient as Api, QUICK_TIMEOUT, percent_encode};
use crate::cli::api_types;
use crate::cli::failure::{CliExit, CliFailure};
use bowline_config::client_programs::ClientProgram;
use bowline_config::{Config, EnvVars};
use bowline_core::suggest::nearest_match;

/// Locates the program of a client in PATH.
pub(in crate::cli) fn find_program(
    client: ClientProgram,
    env: &EnvVars,
) -> Result<OsString, CliFailure> {
    let name = client.name();
    let path = env.raw("PATH").unwrap_or_else(|| OsStr::new(""));
    let found = std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|file| is_executable(file));
    found.map(PathBuf::into_os_string).ok_or_else(|| {
        let message = format!("`{name}` is not in PATH");
        let failure = CliFailure::new(CliExit::Unreachable, "client_not_found", message);
        failure.with_hint(format!("install it: {}", client.install_command()))
    })
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// Loads the config file. A missing file means defaults; an unreadable file is an error, since the
/// variables to hide are unknown.
pub(in crate::cli) fn load_config_or_default(
    context: &CommandContext,
) -> Result<Config, CliFailure> {
    match bowline_config::load_config(context.config_path(), &context.env) {
        Err(bowline_config::ConfigError::NotFound { .. }) => Ok(Config::default()),
        read => Ok(read?),
    }
}

/// Returns the config of the running gateway, unless a config was named explicitly.
pub(in crate::cli) fn load_gateway_config(
    api: &Api,
    config: &Config,
    context: &CommandContext,
) -> Result<Config, CliFailure> {
    let status: StatusResponse =
        api_types::parse_response(&api.get("/api/v1/status", QUICK_TIMEOUT)?)?;
    match status.config.map(PathBuf::from) {
        Some(path) if context.config_path().is_none() && config.path.as_ref() != Some(&path) => {
            Ok(bowline_config::load_config(Some(&path), &context.env)?)
        }
        Some(_) | None => Ok(config.clone()),
    }
}

/// Refuses a server unknown to the gateway, or to the config if no gateway runs, with a similar
/// name.
pub(in crate::cli) fn check_server_known(
    server: &str,
    config: &Config,
    api: Option<&Api>,
) -> Result<(), CliFailure> {
    let unknown = match api {
        Some(api) => {
            let known = api_types::fetch_servers(api)?;
            let is_known = known.iter().any(|one| *one.name == *server);
            (!is_known).then(|| api_types::unknown_server(server, &known))
        }
        None => {
            let known = || config.servers.iter().map(|one| &*one.name);
            let is_known = known().any(|name| name == server);
            (!is_known).then(|| api_types::unknown_server_among(server, known()))
        }
    };
    unknown.map_or(Ok(()), |failure| {
        Err(api_types::with_suggestion_hint(failure))
    })
}

/// Returns the endpoint path of all servers, of one server, or of a profile.
pub(in crate::cli) fn endpoint_path(
    server: Option<&str>,
    profile: Option<&str>,
    config: &Config,
) -> Result<String, CliFailure> {
    let shared = profile_path(profile, config)?;
    Ok(match server {
        Some(server) => format!("/servers/{}/mcp", percent_encode(server)),
        None => shared,
    })
}

fn profile_path(profile: Option<&str>, config: &Config) -> Result<String, CliFailure> {
    let Some(profile) = profile else {
        return Ok("/mcp".to_owned());
    };
    let profiles = &config.policy.profiles;
    if !profiles.contains_key(profile) {
        let failure = CliFailure::usage(format!("no profile `{profile}` is defined"));
        let near = nearest_match(profile, profiles.keys().map(AsRef::as_ref));
        return Err(match near {
            Some(near) => failure.with_hint(format!("did you mean `{near}`?")),
            None => failure,
        });
    }
    Ok(format!("/mcp/{}", percent_encode(profile)))
}
