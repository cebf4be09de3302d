//! Locates the gateway for a command, and its token.

use std::path::PathBuf;

use http::Uri;

use super::CommandContext;
use super::failure::{CliExit, CliFailure};
use bowline_config::state::{self, RunRecord};
use bowline_edge::GatewayAccess;

/// Locates a gateway, also again after it has moved.
#[derive(Clone, Debug)]
pub(crate) struct GatewayFinder {
    url: Option<String>,
    /// Whether the token may be sent to another machine over plain http.
    insecure: bool,
    token_file: Option<PathBuf>,
    /// The state directory, if known.
    pub(crate) state: Option<PathBuf>,
    /// The command that starts a gateway with the same state.
    start_command: String,
}

impl GatewayFinder {
    pub(crate) fn new(context: &CommandContext) -> Self {
        let global = &context.global;
        let url = global
            .url
            .clone()
            .or_else(|| context.env.text("BOWLINE_URL").map(str::to_owned));
        let token_file = global
            .token_file
            .clone()
            .or_else(|| context.env.path("BOWLINE_TOKEN_FILE"));
        let flag = |name: &str, path: &Option<PathBuf>| {
            path.as_ref()
                .map(|path| format!(" --{name} {}", path.display()))
                .unwrap_or_default()
        };
        let start_command = format!(
            "bowline up{}{}",
            flag("config", &global.config),
            flag("state", &global.state)
        );
        Self {
            url: url.filter(|url| !url.is_empty()),
            insecure: global.insecure,
            token_file,
            state: state::locate_state_dir(global.state.as_deref(), &context.env).ok(),
            start_command,
        }
    }

    /// Creates a finder for one running gateway.
    pub(crate) fn for_run(run: &RunRecord) -> Self {
        Self {
            url: Some(run.url.clone()),
            // The gateway runs on this machine, regardless of its address.
            insecure: true,
            token_file: Some(run.token_file.clone()),
            state: None,
            start_command: "bowline worker join".to_owned(),
        }
    }

    /// Returns whether the URL was given explicitly, so no gateway may be started.
    pub(crate) fn has_explicit_url(&self) -> bool {
        self.url.is_some()
    }

    /// Returns the gateway, or a failure.
    pub(crate) fn find_gateway(&self) -> Result<GatewayAccess, CliFailure> {
        if let Some(url) = &self.url {
            let url = parse_base_url(url)?;
            let token_file = self.token_file_for(&url)?;
            check_exposure(&url, self.insecure)?;
            let token = state::read_token(&token_file)?;
            return Ok(GatewayAccess {
                url,
                token,
                token_file,
            });
        }
        let run = match &self.state {
            Some(directory) => state::read_run(directory)?,
            None => None,
        };
        let run = run.ok_or_else(|| self.not_running())?;
        let token_file = self.token_file.clone().unwrap_or(run.token_file);
        let token = state::read_token(&token_file)?;
        Ok(GatewayAccess {
            url: parse_base_url(&run.url)?,
            token,
            token_file,
        })
    }

    fn not_running(&self) -> CliFailure {
        CliFailure::new(CliExit::Unreachable, "not_running", "no gateway is running")
            .with_hint(format!("start one: {}", self.start_command))
    }

    /// Builds the failure for an unresponsive gateway.
    pub(crate) fn unreachable_failure(&self, url: &str) -> CliFailure {
        CliFailure::new(
            CliExit::Unreachable,
            "unreachable",
            format!("no gateway answers at {url}"),
        )
        .with_hint(format!("start one: {}", self.start_command))
    }

    fn token_file_for(&self, url: &str) -> Result<PathBuf, CliFailure> {
        if let Some(path) = &self.token_file {
            return Ok(path.clone());
        }
        // The local owner token must not be sent to an arbitrary typed address.
        if !is_loopback_url(url) {
            let message = format!("a token file is needed for {url}");
            return Err(CliFailure::new(CliExit::Auth, "no_token", message)
                .with_hint("add --token-file FILE"));
        }
        let state = self.state.as_ref().ok_or_else(|| self.not_running())?;
        Ok(state.join("token"))
    }
}

/// Refuses to send a token to another machine without encryption.
pub(crate) fn check_exposure(url: &str, insecure: bool) -> Result<(), CliFailure> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_plain = ["http", "ws"]
        .iter()
        .any(|plain| scheme.eq_ignore_ascii_case(plain));
    if insecure || !is_plain || is_loopback_url(url) {
        return Ok(());
    }
    let message = format!(
        "{url} is another machine and not https: everybody on the way could read the token"
    );
    Err(CliFailure::new(CliExit::Usage, "insecure", message)
        .with_hint("put a proxy with TLS before the gateway and use its https address")
        .with_hint("or use a tunnel: ssh -L 7331:127.0.0.1:7331 HOST, then http://127.0.0.1:7331")
        .with_hint("or add --insecure where the network itself is trusted"))
}

fn parse_base_url(url: &str) -> Result<String, CliFailure> {
    let wrong = |reason: &str| CliFailure::usage(format!("`{url}` cannot be used: {reason}"));
    let uri: Uri = url.parse().map_err(|_error| wrong("not an address"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(wrong("https is not built yet in this version")),
        _ => return Err(wrong("expected http://HOST:PORT")),
    }
    let plain = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    if !plain || uri.query().is_some() {
        return Err(wrong("expected http://HOST:PORT"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn is_loopback_url(url: &str) -> bool {
    let host = url
        .parse::<Uri>()
        .ok()
        .and_then(|uri| uri.host().map(str::to_ascii_lowercase));
    host.is_some_and(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || bare
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{GlobalArgs, OutputFormat, output};
    use bowline_config::EnvVars;
    use bowline_config::state::StateDir;

    fn test_finder(global: GlobalArgs, env: EnvVars) -> GatewayFinder {
        let (out, ..) = output::captured::captured_output(OutputFormat::Human);
        GatewayFinder::new(&CommandContext { global, env, out })
    }

    #[test]
    fn missing_gateway_hints_start_command() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("s");
        let global = GlobalArgs {
            state: Some(state.clone()),
            ..GlobalArgs::default()
        };
        let failure = test_finder(global, EnvVars::default())
            .find_gateway()
            .unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (CliExit::Unreachable, "not_running")
        );
        let expected = format!("start one: bowline up --state {}", state.display());
        assert_eq!(failure.hints, [expected]);
    }

    #[test]
    fn running_gateway_is_found_by_record() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path().join("s")).unwrap();
        let token = state.owner_token().unwrap();
        let run = RunRecord {
            v: 1,
            pid: std::process::id(),
            started_at_ms: 0,
            url: "http://127.0.0.1:9".into(),
            mcp: "http://127.0.0.1:9/mcp".into(),
            token_file: state.token_file(),
        };
        state.write_run(&run).unwrap();
        let global = GlobalArgs {
            state: Some(state.path().to_owned()),
            ..GlobalArgs::default()
        };
        let daemon = test_finder(global.clone(), EnvVars::default())
            .find_gateway()
            .unwrap();
        assert_eq!(
            (daemon.url.as_str(), daemon.token),
            ("http://127.0.0.1:9", token)
        );

        let env = EnvVars::from_pairs([("BOWLINE_URL", "http://localhost:8/")]);
        let daemon = test_finder(global.clone(), env.clone())
            .find_gateway()
            .unwrap();
        assert_eq!(daemon.url, "http://localhost:8");

        let global = GlobalArgs {
            url: Some("http://[::1]:7".into()),
            ..global
        };
        assert_eq!(
            test_finder(global, env).find_gateway().unwrap().url,
            "http://[::1]:7"
        );
    }

    #[test]
    fn owner_token_stays_on_this_host() {
        let env = EnvVars::from_pairs([("BOWLINE_URL", "http://example.com"), ("HOME", "/h")]);
        let failure = test_finder(GlobalArgs::default(), env)
            .find_gateway()
            .unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (CliExit::Auth, "no_token")
        );
    }

    #[test]
    fn remote_token_requires_tls_or_flag() {
        for url in [
            "http://example.com",
            "HTTP://example.com",
            "ws://10.0.0.1:7331",
            "http://127.0.0.1.example.com",
            "http://[2001:db8::1]:1",
            "http://0.0.0.0:1",
        ] {
            let failure = check_exposure(url, false).unwrap_err();
            assert_eq!((failure.exit, &*failure.code), (CliExit::Usage, "insecure"));
            assert_eq!(failure.hints.len(), 3);
            assert!(check_exposure(url, true).is_ok(), "{url}");
        }
        for url in [
            "http://127.0.0.1:7331",
            "http://127.8.8.8",
            "http://[::1]:7331",
            "http://LocalHost:7331",
            "https://example.com",
            "wss://example.com",
        ] {
            assert!(check_exposure(url, false).is_ok(), "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for url in [
            "ftp://h",
            "https://h",
            "h:1",
            "http://u:p@h",
            "http://h/?q",
            "http://",
            " ",
        ] {
            assert_eq!(
                parse_base_url(url).unwrap_err().exit,
                CliExit::Usage,
                "{url}"
            );
        }
        assert_eq!(parse_base_url("http://h:1/").unwrap(), "http://h:1");
    }
}
