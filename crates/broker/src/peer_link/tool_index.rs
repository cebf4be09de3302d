//! Tool index of one server of a peer, rebuilt when the manifest changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bowline_core::sync::lock;
use bowline_wire::object;
use bowline_wire::splice::{replace_span, write_string};
use foldhash::fast::RandomState;

use crate::PeerManifest;
use crate::backend::is_marked_repeatable;
use crate::frames::ManifestItem;

/// Server name for tools without a server.
pub(crate) const UNNAMED_SERVER: &str = "hub";

/// Tools remembered from fetched lists.
const FETCHED_MAX: usize = 16_384;

/// The tools of one server.
#[derive(Debug)]
pub(super) struct ToolIndex {
    server: Arc<str>,
    snapshot: ArcSwap<ToolIndexSnapshot>,
    /// Repeatability of tools from fetched lists; the manifest may have too many tools to list.
    fetched: Mutex<HashMap<Arc<str>, bool, RandomState>>,
}

#[derive(Debug)]
struct ToolIndexSnapshot {
    /// The source manifest.
    manifest: Arc<PeerManifest>,
    /// Repeatability of each tool, by the server's own tool name.
    tools: HashMap<Arc<str>, bool, RandomState>,
}

impl ToolIndexSnapshot {
    fn from_manifest(server: &str, manifest: &Arc<PeerManifest>) -> Self {
        let tools = server_items(server, manifest)
            .map(|item| (Arc::clone(item_tool_name(item)), item.is_repeatable))
            .collect();
        Self {
            manifest: Arc::clone(manifest),
            tools,
        }
    }
}

impl ToolIndex {
    pub(super) fn new(server: &Arc<str>, manifest: &Arc<PeerManifest>) -> Self {
        Self {
            server: Arc::clone(server),
            snapshot: ArcSwap::from_pointee(ToolIndexSnapshot::from_manifest(server, manifest)),
            fetched: Mutex::default(),
        }
    }

    pub(super) const fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// Switches to this manifest.
    pub(super) fn refresh(&self, manifest: &Arc<PeerManifest>) {
        if !Arc::ptr_eq(&self.snapshot.load().manifest, manifest) {
            self.snapshot
                .store(Arc::new(ToolIndexSnapshot::from_manifest(
                    &self.server,
                    manifest,
                )));
        }
    }

    /// Whether two manifests list the same tools of this server.
    pub(super) fn has_same_tools(&self, one: &PeerManifest, two: &PeerManifest) -> bool {
        server_items(&self.server, one).eq(server_items(&self.server, two))
    }

    /// Returns whether a tool is repeatable; `None` for an unknown tool.
    pub(super) fn repeatability(&self, tool: &str) -> Option<bool> {
        let known = self.snapshot.load().tools.get(tool).copied();
        known.or_else(|| lock(&self.fetched).get(tool).copied())
    }

    /// Records the tools of a fetched list page.
    pub(super) fn learn_page(&self, page: &[u8]) {
        let Some(tools) = object::field(page, "tools").map(|at| at.slice(page)) else {
            return;
        };
        let mut fetched = lock(&self.fetched);
        for at in object::items(tools) {
            let definition = at.slice(tools);
            if let Some(name) = object::text_field(definition, "name")
                && fetched.len() < FETCHED_MAX
            {
                fetched.insert(name.into(), is_marked_repeatable(definition));
            }
        }
    }

    /// Returns the result of `tools/list`, with the server's own tool names.
    pub(super) fn list_page(&self) -> Vec<u8> {
        let now = self.snapshot.load();
        let mut page = Vec::from(&b"{\"tools\":["[..]);
        for (at, item) in server_items(&self.server, &now.manifest).enumerate() {
            if at > 0 {
                page.push(b',');
            }
            write_definition(item, &mut page);
        }
        page.extend_from_slice(b"]}");
        page
    }
}

/// Returns the server name of a tool.
pub(crate) fn item_server(item: &ManifestItem) -> &str {
    item.server.as_deref().unwrap_or(UNNAMED_SERVER)
}

fn server_items<'a>(
    server: &'a str,
    manifest: &'a PeerManifest,
) -> impl Iterator<Item = &'a ManifestItem> {
    let items = manifest.items.iter();
    items.filter(move |item| item_server(item) == server)
}

fn item_tool_name(item: &ManifestItem) -> &Arc<str> {
    item.tool.as_ref().unwrap_or(&item.name)
}

fn write_definition(item: &ManifestItem, page: &mut Vec<u8>) {
    let definition = &item.definition;
    let own = item_tool_name(item);
    let named = object::field(definition, "name");
    match named {
        Some(at) if object::parse_string(at.slice(definition)).as_deref() != Some(own) => {
            let mut name = Vec::new();
            write_string(&mut name, own);
            page.extend_from_slice(&replace_span(definition, at, &name));
        }
        _ => page.extend_from_slice(definition),
    }
}
