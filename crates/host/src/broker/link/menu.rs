//! What one server of a peer has, as its manifest says; kept until the manifest changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bowline_core::sync::lock;
use bowline_wire::broker::Item;
use bowline_wire::object;
use bowline_wire::splice::{replace, write_string};
use foldhash::fast::RandomState;

use crate::broker::Manifest;
use crate::broker::backend::says_repeatable;

/// The server to which tools belong of which nobody says whose they are.
pub(crate) const NAMELESS: &str = "hub";

/// Tools that are known of a server whose tools are asked for.
const FETCHED_MAX: usize = 16_384;

/// The tools of one server.
#[derive(Debug)]
pub(super) struct Menu {
    server: Arc<str>,
    now: ArcSwap<Dishes>,
    /// The same of tools that were asked for, of which the manifest may have too many to say.
    fetched: Mutex<HashMap<Arc<str>, bool, RandomState>>,
}

#[derive(Debug)]
struct Dishes {
    /// From which it was read.
    manifest: Arc<Manifest>,
    /// Each tool by the server's own name, and whether it may run twice.
    tools: HashMap<Arc<str>, bool, RandomState>,
}

impl Dishes {
    fn read(server: &str, manifest: &Arc<Manifest>) -> Self {
        let tools = items_of(server, manifest)
            .map(|item| (Arc::clone(own_name(item)), item.repeatable))
            .collect();
        Self {
            manifest: Arc::clone(manifest),
            tools,
        }
    }
}

impl Menu {
    pub(super) fn new(server: &Arc<str>, manifest: &Arc<Manifest>) -> Self {
        Self {
            server: Arc::clone(server),
            now: ArcSwap::from_pointee(Dishes::read(server, manifest)),
            fetched: Mutex::default(),
        }
    }

    pub(super) const fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// Takes this manifest.
    pub(super) fn refresh(&self, manifest: &Arc<Manifest>) {
        if !Arc::ptr_eq(&self.now.load().manifest, manifest) {
            self.now
                .store(Arc::new(Dishes::read(&self.server, manifest)));
        }
    }

    /// Whether two manifests say the same of this server.
    pub(super) fn is_same(&self, one: &Manifest, two: &Manifest) -> bool {
        items_of(&self.server, one).eq(items_of(&self.server, two))
    }

    /// Whether a tool may run twice; nothing where there is no such tool.
    pub(super) fn repeatable(&self, tool: &str) -> Option<bool> {
        let known = self.now.load().tools.get(tool).copied();
        known.or_else(|| lock(&self.fetched).get(tool).copied())
    }

    /// Learns the tools of one page that was asked for.
    pub(super) fn listed(&self, page: &[u8]) {
        let Some(tools) = object::field(page, "tools").map(|at| at.of(page)) else {
            return;
        };
        let mut fetched = lock(&self.fetched);
        for at in object::items(tools) {
            let definition = at.of(tools);
            if let Some(name) = object::text(definition, "name")
                && fetched.len() < FETCHED_MAX
            {
                fetched.insert(name.into(), says_repeatable(definition));
            }
        }
    }

    /// Returns the result of `tools/list`, under the server's own names.
    pub(super) fn page(&self) -> Vec<u8> {
        let now = self.now.load();
        let mut page = Vec::from(&b"{\"tools\":["[..]);
        for (at, item) in items_of(&self.server, &now.manifest).enumerate() {
            if at > 0 {
                page.push(b',');
            }
            write_definition(item, &mut page);
        }
        page.extend_from_slice(b"]}");
        page
    }
}

/// Returns the name of the server that has a tool.
pub(crate) fn server_of(item: &Item) -> &str {
    item.server.as_deref().unwrap_or(NAMELESS)
}

fn items_of<'a>(server: &'a str, manifest: &'a Manifest) -> impl Iterator<Item = &'a Item> {
    let items = manifest.items.iter();
    items.filter(move |item| server_of(item) == server)
}

fn own_name(item: &Item) -> &Arc<str> {
    item.tool.as_ref().unwrap_or(&item.name)
}

fn write_definition(item: &Item, page: &mut Vec<u8>) {
    let definition = &item.definition;
    let own = own_name(item);
    let named = object::field(definition, "name");
    match named {
        Some(at) if object::string(at.of(definition)).as_deref() != Some(own) => {
            let mut name = Vec::new();
            write_string(&mut name, own);
            page.extend_from_slice(&replace(definition, at, &name));
        }
        _ => page.extend_from_slice(definition),
    }
}
