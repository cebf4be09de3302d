//! Where things are that a run needs: the program of the client, the config, the endpoint.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cli::Context;
use crate::cli::api;
use crate::cli::client::{Client as Api, QUICK, encode};
use crate::cli::failure::{Exit, Failure};
use crate::clients::Client;
use crate::config::suggest::nearest;
use crate::config::{self, Config, Env};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    config: Option<PathBuf>,
}

/// Finds the program of a client in PATH.
pub(in crate::cli) fn program(client: Client, env: &Env) -> Result<OsString, Failure> {
    let name = client.name();
    let path = env.raw("PATH").unwrap_or_else(|| OsStr::new(""));
    let found = std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|file| is_program(file));
    found.map(PathBuf::into_os_string).ok_or_else(|| {
        let message = format!("`{name}` is not in PATH");
        let failure = Failure::new(Exit::Unreachable, "client_not_found", message);
        failure.hint(format!("install it: {}", client.installation()))
    })
}

fn is_program(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// Reads the config file. Without one there is nothing to know; with one that cannot be read,
/// nobody knows what a client must not see.
pub(in crate::cli) fn settings(context: &Context) -> Result<Config, Failure> {
    match config::load(context.config(), &context.env) {
        Err(config::Error::NotFound { .. }) => Ok(Config::default()),
        read => Ok(read?),
    }
}

/// Returns the config that the gateway itself runs with, unless one was named.
pub(in crate::cli) fn settings_of(
    api: &Api,
    own: &Config,
    context: &Context,
) -> Result<Config, Failure> {
    let status: Status = api::read(&api.get("/api/v1/status", QUICK)?)?;
    match status.config {
        Some(path) if context.config().is_none() && own.path.as_ref() != Some(&path) => {
            Ok(config::load(Some(&path), &context.env)?)
        }
        Some(_) | None => Ok(own.clone()),
    }
}

/// Refuses a server that is neither in the config nor at the gateway, with the name that may have
/// been meant. Without a gateway the config alone counts.
pub(in crate::cli) fn check_server(
    server: &str,
    config: &Config,
    api: Option<&Api>,
) -> Result<(), Failure> {
    let unknown = match api {
        Some(api) => {
            let known = api::servers(api)?;
            let is_known = known.iter().any(|one| one.name == server);
            (!is_known).then(|| api::no_server(server, &known))
        }
        None => {
            let known = || config.servers.iter().map(|one| &*one.name);
            let is_known = known().any(|name| name == server);
            (!is_known).then(|| api::no_server_among(server, known()))
        }
    };
    unknown.map_or(Ok(()), |failure| Err(api::did_you_mean(failure)))
}

/// Returns the path of the endpoint of all servers, of one, or of a profile.
pub(in crate::cli) fn endpoint(
    server: Option<&str>,
    profile: Option<&str>,
    config: &Config,
) -> Result<String, Failure> {
    let shared = profile_endpoint(profile, config)?;
    Ok(match server {
        Some(server) => format!("/servers/{}/mcp", encode(server)),
        None => shared,
    })
}

fn profile_endpoint(profile: Option<&str>, config: &Config) -> Result<String, Failure> {
    let Some(profile) = profile else {
        return Ok("/mcp".to_owned());
    };
    let known = &config.policy.profiles;
    if !known.contains_key(profile) {
        let failure = Failure::usage(format!("no profile `{profile}` is defined"));
        let near = nearest(profile, known.keys().map(AsRef::as_ref));
        return Err(match near {
            Some(near) => failure.hint(format!("did you mean `{near}`?")),
            None => failure,
        });
    }
    Ok(format!("/mcp/{}", encode(profile)))
}
