//! Matches a tool name against the known tools.

use std::sync::Arc;

use bowline_core::call::{CallSubject, EndpointScope, Route};
use bowline_core::name;

use super::RouterShared;
use crate::catalog::{Catalog, CatalogItem, NameLookup};
use crate::supervisor::Supervisor;

/// Prefix of the `mcp_server_tool` form.
const MCP_PREFIX: &str = "mcp_";

/// Match of a name.
#[derive(Debug)]
pub(super) enum NameMatch {
    /// A single tool.
    Tool {
        server: Supervisor,
        /// The server's own tool name.
        tool: Arc<str>,
        /// True if visible to the principal; otherwise policy refuses a call.
        is_visible: bool,
    },
    /// Possibly a tool of this server, not listed yet.
    Unlisted(Supervisor),
    /// Several tools, by their unambiguous names.
    Ambiguous(Vec<Arc<str>>),
    /// No match.
    Unknown,
}

impl RouterShared {
    /// Returns the enabled tools visible to the principal.
    pub(super) fn visible_tools(&self) -> Vec<CatalogItem> {
        let off = self.disabled.load();
        let mut items = self.host.visible_tools(&self.principal);
        items.retain(|item| !off.is_disabled(&item.route.server, &item.route.name));
        items
    }

    pub(super) fn match_name(&self, name: &str) -> NameMatch {
        // Load the servers before the catalog: if a server is replaced in between, the match
        // belongs to the later server and the call goes to the earlier server, which refuses.
        let servers = self.host.server_map();
        let catalog = self.host.catalog();
        let supervisor_of = |route: &Route| servers.get(&route.server).cloned();
        if let Some(qualified) = QualifiedName::parse(name) {
            return match qualified.lookup(&catalog, name) {
                NameLookup::Route(route) => match supervisor_of(&route) {
                    Some(server) => self.to_enabled_match(server, &route),
                    None => NameMatch::Unknown,
                },
                // Withdrawn: a call gets the reason.
                NameLookup::Withdrawn(route) => match supervisor_of(&route) {
                    Some(server) => NameMatch::Tool {
                        is_visible: false,
                        tool: Arc::clone(&route.name),
                        server,
                    },
                    None => NameMatch::Unknown,
                },
                NameLookup::Unlisted(_) | NameLookup::Unknown => {
                    match servers.get(qualified.server) {
                        Some(server) if catalog.server(qualified.server).is_none() => {
                            NameMatch::Unlisted(server.clone())
                        }
                        Some(_) | None => NameMatch::Unknown,
                    }
                }
            };
        }
        let mut named = Vec::new();
        let offers = catalog.servers();
        for offer in offers.filter(|offer| offer.tools.route(name).is_some()) {
            let item = offer.tools.iter().find(|item| *item.route.name == *name);
            let Some(item) =
                item.filter(|item| self.host.can_see_route(&self.principal, &item.route))
            else {
                continue;
            };
            if let Some(server) = supervisor_of(&item.route)
                && let matched @ NameMatch::Tool { .. } = self.to_enabled_match(server, &item.route)
            {
                named.push((Arc::clone(&item.visible), matched));
            }
        }
        match named.len() {
            0 | 1 => named
                .pop()
                .map_or(NameMatch::Unknown, |(_, matched)| matched),
            _ => NameMatch::Ambiguous(named.into_iter().map(|(name, _)| name).collect()),
        }
    }

    fn to_enabled_match(&self, server: Supervisor, route: &Route) -> NameMatch {
        let off = self.disabled.load();
        if off.is_disabled(&route.server, &route.name) {
            return NameMatch::Unknown;
        }
        NameMatch::Tool {
            is_visible: self.host.can_see_route(&self.principal, route),
            tool: Arc::clone(&route.name),
            server,
        }
    }
}

/// A name with a server part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QualifiedName<'a> {
    server: &'a str,
    /// The server's own tool name; `None` for the listed form, which may be hashed.
    tool: Option<&'a str>,
}

impl<'a> QualifiedName<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        if let Some(server) = name::visible_server(text) {
            return Some(Self { server, tool: None });
        }
        // Server names contain no underscore, so the split is unambiguous.
        let (server, tool) = text.strip_prefix(MCP_PREFIX)?.split_once('_')?;
        let tool = Some(tool);
        name::is_server_name(server).then_some(Self { server, tool })
    }

    fn lookup(self, catalog: &Catalog, name: &str) -> NameLookup {
        let Some(tool) = self.tool else {
            return catalog.lookup(&EndpointScope::All, &CallSubject::Tool(name.into()));
        };
        let scope = EndpointScope::Server(self.server.into());
        catalog.lookup(&scope, &CallSubject::Tool(tool.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualified_name_has_two_forms() {
        let said = |server, tool| Some(QualifiedName { server, tool });
        for (name, expect) in [
            ("files__read", said("files", None)),
            ("files__read_a__b", said("files", None)),
            ("mcp_files_read", said("files", Some("read"))),
            ("mcp_a_b_c", said("a", Some("b_c"))),
            ("mcp_a_", said("a", Some(""))),
            ("mcp_my-files_read", said("my-files", Some("read"))),
            // A server may be called `mcp`; this is the listed form.
            ("mcp__read", said("mcp", None)),
            ("read", None),
            ("mcp_read", None),
            ("mcp_A_read", None),
            ("read_file", None),
            ("A__read", None),
        ] {
            assert_eq!(QualifiedName::parse(name), expect, "{name}");
        }
    }
}
