//! Which part of the gateway a path means. Exact paths only: nothing is normalised or guessed.

use std::sync::Arc;

use bowline_core::call::Scope;
use bowline_core::name;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An MCP endpoint.
    Mcp(Scope),
    /// Where clients of 2024-11-05 open a stream.
    Sse(Scope),
    /// Where they post.
    Messages(Scope),
    /// Where connections come in that go on as something else than HTTP.
    Upgrade(Goes),
    /// The API.
    Api,
    /// What is counted, for whoever watches many machines.
    Metrics,
    /// Whether the process lives.
    Livez,
    /// Whether it serves.
    Readyz,
}

/// What a connection goes on as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// A peer of the broker, which may also say who it is in its first frame.
    Peer,
    /// An executor.
    Executor,
}

impl Goes {
    /// Returns its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Peer => "broker",
            Self::Executor => "executor",
        }
    }
}

impl Place {
    /// Returns its word: the scope of an endpoint is the caller's, and left out.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Mcp(_) => "mcp",
            Self::Sse(_) => "sse",
            Self::Messages(_) => "messages",
            Self::Upgrade(goes) => goes.word(),
            Self::Api => "api",
            Self::Metrics => "metrics",
            Self::Livez | Self::Readyz => "health",
        }
    }
}

/// Returns what `path` leads to.
#[must_use]
pub fn place(path: &str) -> Option<Place> {
    match path {
        "/broker" => Some(Place::Upgrade(Goes::Peer)),
        "/executor" => Some(Place::Upgrade(Goes::Executor)),
        "/livez" => Some(Place::Livez),
        "/metrics" => Some(Place::Metrics),
        "/readyz" => Some(Place::Readyz),
        _ if path.starts_with("/api/v1/") => Some(Place::Api),
        _ => match path.strip_prefix("/servers/") {
            None => {
                let path = path.strip_prefix('/')?;
                match path.split_once('/') {
                    None => endpoint(path, Scope::All),
                    Some((kind, profile)) => {
                        let scope = Scope::Profile(Arc::from(profile));
                        endpoint(kind, scope).filter(|_| name::is_server(profile))
                    }
                }
            }
            Some(rest) => {
                let (server, rest) = rest.split_once('/')?;
                let scope = Scope::Server(Arc::from(server));
                endpoint(rest, scope).filter(|_| name::is_server(server))
            }
        },
    }
}

fn endpoint(name: &str, scope: Scope) -> Option<Place> {
    match name {
        "mcp" => Some(Place::Mcp(scope)),
        "sse" => Some(Place::Sse(scope)),
        "messages" => Some(Place::Messages(scope)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_paths_lead_somewhere() {
        assert_eq!(place("/mcp"), Some(Place::Mcp(Scope::All)));
        assert_eq!(
            place("/servers/files/mcp"),
            Some(Place::Mcp(Scope::Server("files".into())))
        );
        assert_eq!(place("/api/v1/servers"), Some(Place::Api));
        assert_eq!(place("/broker"), Some(Place::Upgrade(Goes::Peer)));
        assert_eq!(place("/executor"), Some(Place::Upgrade(Goes::Executor)));
        assert_eq!(place("/metrics"), Some(Place::Metrics));
        assert_eq!(place("/sse"), Some(Place::Sse(Scope::All)));
        assert_eq!(
            place("/servers/files/messages"),
            Some(Place::Messages(Scope::Server("files".into())))
        );
        let profile = || Scope::Profile("day".into());
        assert_eq!(place("/mcp/day"), Some(Place::Mcp(profile())));
        assert_eq!(place("/sse/day"), Some(Place::Sse(profile())));
        assert_eq!(place("/messages/day"), Some(Place::Messages(profile())));
        for path in [
            "/",
            "/mcp/",
            "//mcp",
            "/MCP",
            "/mcp/../api/v1/servers",
            "/mcp/day/",
            "/mcp/Day",
            "/mcp/..",
            "/mcp/day/mcp",
            "/servers/files/mcp/day",
            "/livez/day",
            "/servers//mcp",
            "/servers/../mcp",
            "/servers/a/b/mcp",
            "/servers/%2e%2e/mcp",
            "/api/v1",
            "/metrics/",
            "/broker/",
            "/broker/day",
            "/executor/",
            "/executor/office",
            "/servers/files/broker",
            "/.well-known/mcp",
            "*",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }
}
