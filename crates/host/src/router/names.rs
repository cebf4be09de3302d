//! What a name means among the tools that are known now.

use std::sync::Arc;

use bowline_core::call::{Route, Scope, Subject};
use bowline_core::name;

use super::Shared;
use crate::catalog::{Catalog, Found, Item};
use crate::supervisor::Supervisor;

/// Begins the other form of a name that says its server.
const PREFIX: &str = "mcp_";

/// What a name means.
#[derive(Debug)]
pub(super) enum Meant {
    /// This tool.
    Tool {
        server: Supervisor,
        /// The server's own name of it.
        tool: Arc<str>,
        /// Whether the principal may see it; a call of one that it may not is refused by policy.
        seen: bool,
    },
    /// Perhaps one of this server, which has not told its tools yet.
    Unlisted(Supervisor),
    /// One of several, by the names that tell them apart.
    Several(Vec<Arc<str>>),
    /// Nothing.
    Nothing,
}

impl Shared {
    /// Returns the tools that are routed and that the principal may see.
    pub(super) fn seen(&self) -> Vec<Item> {
        let off = self.switches.load();
        let mut items = self.host.tools_seen(&self.principal);
        items.retain(|item| !off.is_off(&item.route.server, &item.route.name));
        items
    }

    pub(super) fn look_up(&self, name: &str) -> Meant {
        // The servers come first: where one is replaced in between, what is found belongs to the
        // later one and is called at the earlier one, which refuses.
        let servers = self.host.in_care();
        let catalog = self.host.catalog();
        let in_care = |route: &Route| servers.get(&route.server).cloned();
        if let Some(said) = Said::read(name) {
            return match said.find(&catalog, name) {
                Found::Route(route) => match in_care(&route) {
                    Some(server) => self.routed(server, &route),
                    None => Meant::Nothing,
                },
                // Not offered, and a call of it is told why.
                Found::Withdrawn(route) => match in_care(&route) {
                    Some(server) => Meant::Tool {
                        seen: false,
                        tool: Arc::clone(&route.name),
                        server,
                    },
                    None => Meant::Nothing,
                },
                Found::Unlisted(_) | Found::Nothing => match servers.get(said.server) {
                    Some(server) if catalog.offer(said.server).is_none() => {
                        Meant::Unlisted(server.clone())
                    }
                    Some(_) | None => Meant::Nothing,
                },
            };
        }
        let mut named = Vec::new();
        let offers = catalog.offers();
        for offer in offers.filter(|offer| offer.tools.route(name).is_some()) {
            let item = offer.tools.iter().find(|item| *item.route.name == *name);
            let Some(item) = item.filter(|item| self.host.sees_route(&self.principal, &item.route))
            else {
                continue;
            };
            if let Some(server) = in_care(&item.route)
                && let meant @ Meant::Tool { .. } = self.routed(server, &item.route)
            {
                named.push((Arc::clone(&item.visible), meant));
            }
        }
        match named.len() {
            0 | 1 => named.pop().map_or(Meant::Nothing, |(_, meant)| meant),
            _ => Meant::Several(named.into_iter().map(|(name, _)| name).collect()),
        }
    }

    fn routed(&self, server: Supervisor, route: &Route) -> Meant {
        let off = self.switches.load();
        if off.is_off(&route.server, &route.name) {
            return Meant::Nothing;
        }
        Meant::Tool {
            seen: self.host.sees_route(&self.principal, route),
            tool: Arc::clone(&route.name),
            server,
        }
    }
}

/// A name that says its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said<'a> {
    server: &'a str,
    /// The server's own name of the tool; absent in the form that is listed, where it may be
    /// hashed.
    tool: Option<&'a str>,
}

impl<'a> Said<'a> {
    fn read(text: &'a str) -> Option<Self> {
        if let Some(server) = name::server_of(text) {
            return Some(Self { server, tool: None });
        }
        // No server has an underscore in its name, so there is one way to read it.
        let (server, tool) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let tool = Some(tool);
        name::is_server(server).then_some(Self { server, tool })
    }

    fn find(self, catalog: &Catalog, name: &str) -> Found {
        let Some(tool) = self.tool else {
            return catalog.find(&Scope::All, &Subject::Tool(name.into()));
        };
        let scope = Scope::Server(self.server.into());
        catalog.find(&scope, &Subject::Tool(tool.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_server_in_two_ways_and_in_no_third() {
        let said = |server, tool| Some(Said { server, tool });
        for (name, expect) in [
            ("files__read", said("files", None)),
            ("files__read_a__b", said("files", None)),
            ("mcp_files_read", said("files", Some("read"))),
            ("mcp_a_b_c", said("a", Some("b_c"))),
            ("mcp_a_", said("a", Some(""))),
            ("mcp_my-files_read", said("my-files", Some("read"))),
            // A server may be called so, and then it is the listed form.
            ("mcp__read", said("mcp", None)),
            ("read", None),
            ("mcp_read", None),
            ("mcp_A_read", None),
            ("read_file", None),
            ("A__read", None),
        ] {
            assert_eq!(Said::read(name), expect, "{name}");
        }
    }
}
