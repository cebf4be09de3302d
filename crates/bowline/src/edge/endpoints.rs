//! Maps URL paths to endpoints. Exact paths only, without normalization.

use std::sync::Arc;

use bowline_core::call::EndpointScope;
use bowline_core::name;

/// Endpoint of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeEndpoint {
    /// MCP over streamable HTTP.
    Mcp(EndpointScope),
    /// Event stream of the HTTP+SSE transport (2024-11-05).
    Sse(EndpointScope),
    /// POST endpoint of the HTTP+SSE transport.
    Messages(EndpointScope),
    /// WebSocket upgrade.
    Upgrade(UpgradeTarget),
    /// The API.
    Api,
    /// Metrics for monitoring.
    Metrics,
    /// Liveness check.
    Livez,
    /// Readiness check.
    Readyz,
}

/// Protocol after a WebSocket upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeTarget {
    /// Broker peer; may authenticate in its first frame.
    Peer,
    /// Executor.
    Executor,
}

impl UpgradeTarget {
    /// Returns the label for logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Peer => "broker",
            Self::Executor => "executor",
        }
    }
}

impl EdgeEndpoint {
    /// Returns the label for logs and metrics, without the scope chosen by the caller.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Mcp(_) => "mcp",
            Self::Sse(_) => "sse",
            Self::Messages(_) => "messages",
            Self::Upgrade(target) => target.label(),
            Self::Api => "api",
            Self::Metrics => "metrics",
            Self::Livez | Self::Readyz => "health",
        }
    }
}

/// Returns the endpoint of `path`.
#[must_use]
pub fn match_path(path: &str) -> Option<EdgeEndpoint> {
    match path {
        "/broker" => Some(EdgeEndpoint::Upgrade(UpgradeTarget::Peer)),
        "/executor" => Some(EdgeEndpoint::Upgrade(UpgradeTarget::Executor)),
        "/livez" => Some(EdgeEndpoint::Livez),
        "/metrics" => Some(EdgeEndpoint::Metrics),
        "/readyz" => Some(EdgeEndpoint::Readyz),
        _ if path.starts_with("/api/v1/") => Some(EdgeEndpoint::Api),
        _ => match path.strip_prefix("/servers/") {
            None => {
                let path = path.strip_prefix('/')?;
                match path.split_once('/') {
                    None => match_mcp_path(path, EndpointScope::All),
                    Some((kind, profile)) => {
                        let scope = EndpointScope::Profile(Arc::from(profile));
                        match_mcp_path(kind, scope).filter(|_| name::is_server_name(profile))
                    }
                }
            }
            Some(rest) => {
                let (server, rest) = rest.split_once('/')?;
                let scope = EndpointScope::Server(Arc::from(server));
                match_mcp_path(rest, scope).filter(|_| name::is_server_name(server))
            }
        },
    }
}

fn match_mcp_path(name: &str, scope: EndpointScope) -> Option<EdgeEndpoint> {
    match name {
        "mcp" => Some(EdgeEndpoint::Mcp(scope)),
        "sse" => Some(EdgeEndpoint::Sse(scope)),
        "messages" => Some(EdgeEndpoint::Messages(scope)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_paths_match() {
        assert_eq!(
            match_path("/mcp"),
            Some(EdgeEndpoint::Mcp(EndpointScope::All))
        );
        assert_eq!(
            match_path("/servers/files/mcp"),
            Some(EdgeEndpoint::Mcp(EndpointScope::Server("files".into())))
        );
        assert_eq!(match_path("/api/v1/servers"), Some(EdgeEndpoint::Api));
        assert_eq!(
            match_path("/broker"),
            Some(EdgeEndpoint::Upgrade(UpgradeTarget::Peer))
        );
        assert_eq!(
            match_path("/executor"),
            Some(EdgeEndpoint::Upgrade(UpgradeTarget::Executor))
        );
        assert_eq!(match_path("/metrics"), Some(EdgeEndpoint::Metrics));
        assert_eq!(
            match_path("/sse"),
            Some(EdgeEndpoint::Sse(EndpointScope::All))
        );
        assert_eq!(
            match_path("/servers/files/messages"),
            Some(EdgeEndpoint::Messages(EndpointScope::Server(
                "files".into()
            )))
        );
        let profile = || EndpointScope::Profile("day".into());
        assert_eq!(match_path("/mcp/day"), Some(EdgeEndpoint::Mcp(profile())));
        assert_eq!(match_path("/sse/day"), Some(EdgeEndpoint::Sse(profile())));
        assert_eq!(
            match_path("/messages/day"),
            Some(EdgeEndpoint::Messages(profile()))
        );
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
            assert_eq!(match_path(path), None, "{path}");
        }
    }
}
