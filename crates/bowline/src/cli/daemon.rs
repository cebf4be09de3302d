//! Which gateway a command talks to, and with which token.

use std::path::PathBuf;

use http::Uri;

use super::Context;
use super::failure::{Exit, Failure};
use crate::state::{self, Run, Token};

/// A gateway that can be asked.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    /// Base of its addresses, without a slash at the end.
    pub(crate) url: String,
    /// The owner's token.
    pub(crate) token: Token,
    /// Where the token came from, for messages.
    pub(crate) token_file: PathBuf,
}

/// How to find a gateway, now or again later when it has moved.
#[derive(Clone, Debug)]
pub(crate) struct Finder {
    url: Option<String>,
    /// Whether the token may go to another machine over plain http.
    insecure: bool,
    token_file: Option<PathBuf>,
    /// The state directory, if one is known.
    pub(crate) state: Option<PathBuf>,
    /// The command that starts a gateway for the same state.
    up: String,
}

impl Finder {
    pub(crate) fn new(context: &Context) -> Self {
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
        let up = format!(
            "bowline up{}{}",
            flag("config", &global.config),
            flag("state", &global.state)
        );
        Self {
            url: url.filter(|url| !url.is_empty()),
            insecure: global.insecure,
            token_file,
            state: state::locate(global.state.as_deref(), &context.env).ok(),
            up,
        }
    }

    /// Finds this very gateway and no other.
    pub(crate) fn only(run: &Run) -> Self {
        Self {
            url: Some(run.url.clone()),
            // It is on this machine, whatever its address.
            insecure: true,
            token_file: Some(run.token_file.clone()),
            state: None,
            up: "bowline worker join".to_owned(),
        }
    }

    /// Whether the address was given rather than looked up, so that nothing may be started.
    pub(crate) fn is_fixed(&self) -> bool {
        self.url.is_some()
    }

    /// The gateway, or why there is none.
    pub(crate) fn find(&self) -> Result<Daemon, Failure> {
        if let Some(url) = &self.url {
            let url = base(url)?;
            let token_file = self.token_for(&url)?;
            check_exposure(&url, self.insecure)?;
            let token = state::read_token(&token_file)?;
            return Ok(Daemon {
                url,
                token,
                token_file,
            });
        }
        let run = match &self.state {
            Some(directory) => state::read_run(directory)?,
            None => None,
        };
        let run = run.ok_or_else(|| self.none())?;
        let token_file = self.token_file.clone().unwrap_or(run.token_file);
        let token = state::read_token(&token_file)?;
        Ok(Daemon {
            url: base(&run.url)?,
            token,
            token_file,
        })
    }

    fn none(&self) -> Failure {
        Failure::new(Exit::Unreachable, "not_running", "no gateway is running")
            .hint(format!("start one: {}", self.up))
    }

    /// A gateway that does not answer.
    pub(crate) fn unreachable(&self, url: &str) -> Failure {
        Failure::new(
            Exit::Unreachable,
            "unreachable",
            format!("no gateway answers at {url}"),
        )
        .hint(format!("start one: {}", self.up))
    }

    fn token_for(&self, url: &str) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.token_file {
            return Ok(path.clone());
        }
        // The token of this machine's owner must not travel to whatever address was typed.
        if !is_loopback(url) {
            let message = format!("a token file is needed for {url}");
            return Err(Failure::new(Exit::Auth, "no_token", message).hint("add --token-file FILE"));
        }
        let state = self.state.as_ref().ok_or_else(|| self.none())?;
        Ok(state.join("token"))
    }
}

/// Refuses to send a token to another machine where everybody on the way can read it.
pub(crate) fn check_exposure(url: &str, insecure: bool) -> Result<(), Failure> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_plain = ["http", "ws"]
        .iter()
        .any(|plain| scheme.eq_ignore_ascii_case(plain));
    if insecure || !is_plain || is_loopback(url) {
        return Ok(());
    }
    let message = format!(
        "{url} is another machine and not https: everybody on the way could read the token"
    );
    Err(Failure::new(Exit::Usage, "insecure", message)
        .hint("put a proxy with TLS before the gateway and use its https address")
        .hint("or use a tunnel: ssh -L 7331:127.0.0.1:7331 HOST, then http://127.0.0.1:7331")
        .hint("or add --insecure where the network itself is trusted"))
}

fn base(url: &str) -> Result<String, Failure> {
    let wrong = |why: &str| Failure::usage(format!("`{url}` cannot be used: {why}"));
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

fn is_loopback(url: &str) -> bool {
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
    use crate::cli::{Format, Global, out};
    use crate::config::Env;
    use crate::state::State;

    fn finder(global: Global, env: Env) -> Finder {
        let (out, ..) = out::captured::out(Format::Human);
        Finder::new(&Context { global, env, out })
    }

    #[test]
    fn without_a_gateway_the_command_that_starts_one_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("s");
        let global = Global {
            state: Some(state.clone()),
            ..Global::default()
        };
        let failure = finder(global, Env::default()).find().unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (Exit::Unreachable, "not_running")
        );
        let expected = format!("start one: bowline up --state {}", state.display());
        assert_eq!(failure.hints, [expected]);
    }

    #[test]
    fn a_running_gateway_is_found_by_its_record() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path().join("s")).unwrap();
        let token = state.token().unwrap();
        let run = Run {
            v: 1,
            pid: std::process::id(),
            started_at_ms: 0,
            url: "http://127.0.0.1:9".into(),
            mcp: "http://127.0.0.1:9/mcp".into(),
            token_file: state.token_file(),
        };
        state.write_run(&run).unwrap();
        let global = Global {
            state: Some(state.path().to_owned()),
            ..Global::default()
        };
        let daemon = finder(global.clone(), Env::default()).find().unwrap();
        assert_eq!(
            (daemon.url.as_str(), daemon.token),
            ("http://127.0.0.1:9", token)
        );

        let env = Env::of([("BOWLINE_URL", "http://localhost:8/")]);
        let daemon = finder(global.clone(), env.clone()).find().unwrap();
        assert_eq!(daemon.url, "http://localhost:8");

        let global = Global {
            url: Some("http://[::1]:7".into()),
            ..global
        };
        assert_eq!(finder(global, env).find().unwrap().url, "http://[::1]:7");
    }

    #[test]
    fn the_owners_token_does_not_travel_to_other_hosts_by_itself() {
        let env = Env::of([("BOWLINE_URL", "http://example.com"), ("HOME", "/h")]);
        let failure = finder(Global::default(), env).find().unwrap_err();
        assert_eq!(
            (failure.exit, failure.code.as_str()),
            (Exit::Auth, "no_token")
        );
    }

    #[test]
    fn token_goes_to_other_machines_over_tls_or_when_told() {
        for url in [
            "http://example.com",
            "HTTP://example.com",
            "ws://10.0.0.1:7331",
            "http://127.0.0.1.example.com",
            "http://[2001:db8::1]:1",
            "http://0.0.0.0:1",
        ] {
            let failure = check_exposure(url, false).unwrap_err();
            assert_eq!((failure.exit, &*failure.code), (Exit::Usage, "insecure"));
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
    fn addresses_that_cannot_be_used_are_refused() {
        for url in [
            "ftp://h",
            "https://h",
            "h:1",
            "http://u:p@h",
            "http://h/?q",
            "http://",
            " ",
        ] {
            assert_eq!(base(url).unwrap_err().exit, Exit::Usage, "{url}");
        }
        assert_eq!(base("http://h:1/").unwrap(), "http://h:1");
    }
}
