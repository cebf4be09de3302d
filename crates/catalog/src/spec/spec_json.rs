//! Parses a spec from a JSON object, for programs with their own server documents.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use bowline_core::redact::Redactor;
use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::{EndpointError, HttpEndpoint};
use bowline_link::http::upstream_credentials::{
    CredentialError, NoCredentials, UpstreamCredentials,
};
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::{ChildSpec, RemoteSpec, ServerSpec, ServerTransport};

/// Environment variables inherited by every child: enough to find programs and set the locale,
/// without credentials.
pub const CHILD_ENV: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// Why a document is not a valid spec.
#[derive(Debug, Error)]
pub enum SpecError {
    /// Missing or empty name.
    #[error("`name` must be a string that is not empty")]
    NoName,
    /// Invalid members.
    #[error("the spec of server `{server}` cannot be read")]
    Members {
        /// The server.
        server: String,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// Neither or both of `command` and `url`.
    #[error("server `{0}` needs either `command` or `url`")]
    NoReach(String),
    /// The transport does not match the other members.
    #[error("server `{server}` cannot have the transport `{transport}`")]
    Transport {
        /// The server.
        server: String,
        /// The given transport.
        transport: String,
    },
    /// Invalid address.
    #[error("the address of server `{server}` cannot be used")]
    Address {
        /// The server.
        server: String,
        /// The parse error.
        #[source]
        source: EndpointError,
    },
    /// Invalid token or header.
    #[error("the header `{header}` of server `{server}` cannot be sent")]
    Header {
        /// The server.
        server: String,
        /// The header.
        header: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecDocument {
    #[serde(rename = "name")]
    _name: String,
    transport: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: std::collections::BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    url: Option<String>,
    auth_token: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    lazy: Option<bool>,
}

impl ServerSpec {
    /// Parses an object with `name` and either `command`, `args`, `env`, `cwd` (child process) or
    /// `url`, `auth_token`, `headers` (HTTP), and optional `transport` (`stdio`, `http`,
    /// `streamable`, `sse`) and `lazy`. Everything else has its default.
    ///
    /// A child gets `env` and, from the environment of this process, only [`CHILD_ENV`].
    ///
    /// ```
    /// # use bowline_catalog::spec::ServerSpec;
    /// use serde_json::json;
    ///
    /// let spec = ServerSpec::from_json(&json!({"name": "files", "command": "files-server"}))?;
    /// assert_eq!(&*spec.name, "files");
    /// let spec = ServerSpec::from_json(&json!({"name": "My_Files", "command": "files-server"}))?;
    /// assert_eq!(&*spec.name, "my-files");
    /// assert!(ServerSpec::from_json(&json!({"command": "files-server"})).is_err());
    /// # Ok::<(), bowline_catalog::spec::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// Missing or empty name, an unknown or invalid member, or no transport.
    pub fn from_json(document: &Value) -> Result<Self, SpecError> {
        let server = document.get("name").and_then(Value::as_str);
        let server = server.filter(|name| !name.is_empty());
        let server = server.ok_or(SpecError::NoName)?.to_owned();
        let members = SpecDocument::deserialize(document).map_err(|source| SpecError::Members {
            server: server.clone(),
            source,
        })?;
        let lazy = members.lazy.unwrap_or_default();
        let secrets = Arc::new(credential_redactor(&members));
        let reach = match (&members.command, &members.url) {
            (Some(_), None) => child_transport(&server, members)?,
            (None, Some(_)) => http_transport(&server, members)?,
            (None, None) | (Some(_), Some(_)) => return Err(SpecError::NoReach(server)),
        };
        Ok(Self {
            lazy,
            secrets,
            ..Self::with_transport(&server, reach)
        })
    }

    /// Creates a spec for a program with arguments, [`CHILD_ENV`] from the environment of this
    /// process, and defaults.
    #[must_use]
    pub fn command<A>(name: &str, program: impl Into<OsString>, args: A) -> Self
    where
        A: IntoIterator,
        A::Item: Into<OsString>,
    {
        let child = ChildSpec {
            args: args.into_iter().map(Into::into).collect(),
            env: inherited_env().collect(),
            ..ChildSpec::new(program)
        };
        Self::with_transport(name, ServerTransport::Child(child))
    }

    /// Sets an environment variable of a child process; a server of another transport has none.
    ///
    /// ```
    /// # use bowline_catalog::spec::ServerSpec as Server;
    /// let git = Server::command("git", "git-server", ["--stdio"])
    ///     .env("GIT_PAGER", "cat")
    ///     .cwd("/srv/repository");
    /// ```
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        if let ServerTransport::Child(child) = &mut self.transport {
            let name = name.into();
            child.env.retain(|(existing, _)| *existing != name);
            child.env.push((name, value.into()));
        }
        self
    }

    /// Sets the working directory of a child process; a server of another transport has none.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<PathBuf>) -> Self {
        if let ServerTransport::Child(child) = &mut self.transport {
            child.cwd = Some(directory.into());
        }
        self
    }
}

/// Returns a redactor for the credentials.
fn credential_redactor(members: &SpecDocument) -> Redactor {
    let token = members
        .auth_token
        .iter()
        .map(|token| ("auth_token", token.as_str()));
    let headers = members.headers.iter();
    let headers = headers.map(|(name, value)| (name.as_str(), value.as_str()));
    Redactor::new(token.chain(headers))
}

fn inherited_env() -> impl Iterator<Item = (OsString, OsString)> {
    let names = CHILD_ENV.into_iter();
    names.filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
}

fn child_transport(server: &str, members: SpecDocument) -> Result<ServerTransport, SpecError> {
    if let Some(transport) = members.transport.filter(|word| word != "stdio") {
        let server = server.to_owned();
        return Err(SpecError::Transport { server, transport });
    }
    let env = inherited_env().filter(|(name, _)| {
        let name = name.to_str();
        !name.is_some_and(|name| members.env.contains_key(name))
    });
    let set = members.env.iter();
    let set = set.map(|(name, value)| (name.into(), value.into()));
    Ok(ServerTransport::Child(ChildSpec {
        args: members.args.into_iter().map(OsString::from).collect(),
        env: env.chain(set).collect(),
        cwd: members.cwd,
        ..ChildSpec::new(members.command.unwrap_or_default())
    }))
}

fn http_transport(server: &str, members: SpecDocument) -> Result<ServerTransport, SpecError> {
    let transport = match members.transport.as_deref() {
        None | Some("http") => HttpTransport::Auto,
        Some("streamable") => HttpTransport::Streamable,
        Some("sse") => HttpTransport::Sse,
        Some(other) => {
            return Err(SpecError::Transport {
                server: server.to_owned(),
                transport: other.to_owned(),
            });
        }
    };
    let url = HttpEndpoint::parse(members.url.as_deref().unwrap_or_default());
    let url = url.map_err(|source| SpecError::Address {
        server: server.to_owned(),
        source,
    })?;
    let bearer = members.auth_token.map(|token| {
        let value = format!("Bearer {token}");
        (AUTHORIZATION.as_str().to_owned(), value)
    });
    let headers = members.headers.into_iter().chain(bearer);
    let headers = headers.map(|(name, value)| parse_header(server, &name, &value));
    let headers: Vec<_> = headers.collect::<Result<_, _>>()?;
    let credentials: Arc<dyn UpstreamCredentials> = match headers.is_empty() {
        true => Arc::new(NoCredentials),
        false => Arc::new(StaticHeaders(headers)),
    };
    Ok(ServerTransport::Remote(RemoteSpec {
        url,
        transport,
        credentials,
        via: None,
    }))
}

fn parse_header(
    server: &str,
    name: &str,
    value: &str,
) -> Result<(HeaderName, HeaderValue), SpecError> {
    let unusable = || SpecError::Header {
        server: server.to_owned(),
        header: name.to_owned(),
    };
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
    let mut value = HeaderValue::from_str(value).map_err(|_| unusable())?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

/// Fixed headers.
struct StaticHeaders(Vec<(HeaderName, HeaderValue)>);

impl UpstreamCredentials for StaticHeaders {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        Ok(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse_error(document: &Value) -> String {
        ServerSpec::from_json(document).unwrap_err().to_string()
    }

    #[test]
    fn spec_requires_non_empty_name() {
        for document in [
            json!({"command": "x"}),
            json!({"name": "", "command": "x"}),
            json!({"name": 7, "command": "x"}),
            json!([]),
        ] {
            let expect = "`name` must be a string that is not empty";
            assert_eq!(parse_error(&document), expect, "{document}");
        }
    }

    #[test]
    fn spec_requires_exactly_one_transport() {
        for document in [
            json!({"name": "a"}),
            json!({"name": "a", "command": "x", "url": "http://127.0.0.1:1/mcp"}),
            json!({"name": "a", "command": "x", "transport": "http"}),
            json!({"name": "a", "url": "http://127.0.0.1:1/mcp", "transport": "stdio"}),
            json!({"name": "a", "url": "ftp://x"}),
            json!({"name": "a", "command": "x", "comand": "y"}),
            json!({"name": "a", "command": "x", "args": "y"}),
        ] {
            assert!(ServerSpec::from_json(&document).is_err(), "{document}");
        }
    }

    #[test]
    fn child_env_excludes_process_credentials() {
        let document = json!({"name": "a", "command": "prog", "args": ["-x"], "cwd": "/tmp",
            "env": {"PATH": "/only", "KEY": "v"}, "transport": "stdio", "lazy": true});
        let spec = ServerSpec::from_json(&document).unwrap();
        assert!(spec.lazy);
        let ServerTransport::Child(child) = &spec.transport else {
            panic!("no child");
        };
        assert_eq!(child.args, ["-x"]);
        assert_eq!(child.cwd, Some("/tmp".into()));
        let value = |name: &str| {
            let mut found = child.env.iter().filter(|(key, _)| key == name);
            (found.next().map(|(_, value)| value.clone()), found.count())
        };
        assert_eq!(value("PATH"), (Some("/only".into()), 0));
        assert_eq!(value("KEY"), (Some("v".into()), 0));
        let known = |name: &OsString| CHILD_ENV.iter().any(|known| name == known) || name == "KEY";
        assert!(child.env.iter().all(|(name, _)| known(name)));
    }

    #[test]
    fn command_sets_env_and_cwd() {
        let server = ServerSpec::command("a", "prog", ["-x"]);
        let server = server
            .env("PATH", "/only")
            .env("KEY", "1")
            .env("KEY", "2")
            .cwd("/tmp");
        let ServerTransport::Child(child) = &server.transport else {
            panic!("no child");
        };
        let values = |name: &str| -> Vec<OsString> {
            let set = child.env.iter().filter(|(key, _)| key == name);
            set.map(|(_, value)| value.clone()).collect()
        };
        assert_eq!(
            (values("PATH"), values("KEY")),
            (vec!["/only".into()], vec!["2".into()])
        );
        assert_eq!(child.cwd, Some("/tmp".into()));
    }

    #[test]
    fn auth_token_is_sent_as_bearer() {
        let document = json!({"name": "a", "url": "https://x.example/mcp", "auth_token": "t"});
        let spec = ServerSpec::from_json(&document).unwrap();
        let ServerTransport::Remote(remote) = &spec.transport else {
            panic!("not remote");
        };
        let headers = remote.credentials.headers().unwrap();
        assert_eq!(headers[0].1, "Bearer t");
        assert_eq!(spec.transport.name(), "http");
    }
}
