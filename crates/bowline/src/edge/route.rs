//! Which part of the gateway a path means. Exact paths only: nothing is normalised or guessed.

use std::sync::Arc;

use bowline_core::call::Scope;
use bowline_core::name;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An MCP endpoint.
    Mcp(Scope),
    /// The API.
    Api,
    /// Whether the process lives.
    Livez,
    /// Whether it serves.
    Readyz,
}

/// Returns what `path` leads to.
#[must_use]
pub fn place(path: &str) -> Option<Place> {
    match path {
        "/mcp" => Some(Place::Mcp(Scope::All)),
        "/livez" => Some(Place::Livez),
        "/readyz" => Some(Place::Readyz),
        _ if path.starts_with("/api/v1/") => Some(Place::Api),
        _ => path
            .strip_prefix("/servers/")
            .and_then(|rest| rest.strip_suffix("/mcp"))
            .filter(|server| name::is_server(server))
            .map(|server| Place::Mcp(Scope::Server(Arc::from(server)))),
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
        for path in [
            "/",
            "/mcp/",
            "//mcp",
            "/MCP",
            "/mcp/../api/v1/servers",
            "/servers//mcp",
            "/servers/../mcp",
            "/servers/a/b/mcp",
            "/servers/%2e%2e/mcp",
            "/api/v1",
            "/.well-known/mcp",
            "*",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }
}
