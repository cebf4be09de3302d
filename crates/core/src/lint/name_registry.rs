//! Names of all servers and tools, for detecting lookalike names and mentions.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::characters::name_skeleton;
use crate::name::SEPARATOR;
use crate::pins::{NAME_BYTES_MAX, TOOLS_MAX};

/// Shorter names may be ordinary words.
const DISTINCT_CHARS_MIN: usize = 8;

/// Prefix of a common form of visible names.
const MCP_PREFIX: &str = "mcp_";

/// All known names.
#[derive(Clone, Debug, Default)]
pub struct NameRegistry {
    servers: HashSet<Arc<str>, RandomState>,
    /// The servers of each tool name.
    tools: HashMap<Arc<str>, BTreeSet<Arc<str>>, RandomState>,
    /// Known tools per server.
    tool_counts: HashMap<Arc<str>, usize, RandomState>,
    /// Tool names by visual skeleton.
    by_skeleton: HashMap<Box<str>, BTreeSet<Arc<str>>, RandomState>,
}

impl NameRegistry {
    /// Replaces the set of servers.
    pub fn set_servers<'a>(&mut self, servers: impl IntoIterator<Item = &'a Arc<str>>) {
        self.servers = servers.into_iter().cloned().collect();
    }

    /// Adds a server.
    pub fn add_server(&mut self, server: &Arc<str>) {
        self.servers.insert(Arc::clone(server));
    }

    /// Whether the tool of the server is known.
    #[must_use]
    pub fn has_tool(&self, server: &str, tool: &str) -> bool {
        let servers = self.tools.get(tool);
        servers.is_some_and(|servers| servers.contains(server))
    }

    /// Whether the server is known.
    #[must_use]
    pub fn has_server(&self, server: &str) -> bool {
        self.servers.contains(server)
    }

    /// Adds a tool of a server, up to a limit, so that a server renaming its tools over and over
    /// cannot grow the registry.
    pub fn add_tool(&mut self, server: &Arc<str>, tool: &Arc<str>) {
        let count = self.tool_counts.entry(Arc::clone(server)).or_default();
        if *count >= TOOLS_MAX || tool.len() > NAME_BYTES_MAX {
            return;
        }
        let servers = self.tools.entry(Arc::clone(tool)).or_default();
        *count += usize::from(servers.insert(Arc::clone(server)));
        let looks = self
            .by_skeleton
            .entry(name_skeleton(tool).into())
            .or_default();
        looks.insert(Arc::clone(tool));
    }

    /// Returns the foreign tool or server that `name` of `server` looks like without being equal.
    pub(super) fn find_confusable(&self, server: &str, name: &str) -> Option<String> {
        let skeleton = name_skeleton(name);
        // Of a plain name and a disguised name, the plain name is legitimate.
        if skeleton == name {
            return None;
        }
        let tools = self
            .by_skeleton
            .get(skeleton.as_str())
            .into_iter()
            .flatten();
        for tool in tools.filter(|tool| ***tool != *name) {
            if let Some(other) = self.other_server_with(server, tool) {
                return Some(format!("{other}.{tool}"));
            }
        }
        let like = self.servers.get(skeleton.as_str());
        let like = like.filter(|like| ***like != *name && ***like != *server);
        like.map(|like| like.as_ref().to_owned())
    }

    /// Returns the first tool of a different server mentioned in a text of `server`.
    pub(super) fn find_mention(&self, server: &str, text: &str) -> Option<String> {
        let is_part =
            |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '.');
        let words = text.split(|character| !is_part(character));
        let mut words = words.map(|word| word.trim_matches(['.', '-']));
        words
            .find(|word| !word.is_empty() && self.is_mention(server, word))
            .map(str::to_owned)
    }

    fn is_mention(&self, server: &str, word: &str) -> bool {
        let is_other = |name: &str| *name != *server && self.servers.contains(name);
        if let Some((other, tool)) = word.split_once(SEPARATOR)
            && is_other(other)
            && !tool.is_empty()
        {
            return true;
        }
        if let Some((other, tool)) = word
            .strip_prefix(MCP_PREFIX)
            .and_then(|s| s.split_once('_'))
            && is_other(other)
            && !tool.is_empty()
        {
            return true;
        }
        // Many texts contain a word with a dot, so the tool must exist as well.
        if let Some((other, tool)) = word.split_once('.')
            && is_other(other)
            && self.has_tool(other, tool)
        {
            return true;
        }
        self.is_distinct_tool(server, word)
    }

    /// Whether a word unambiguously names a tool of a different server.
    fn is_distinct_tool(&self, server: &str, word: &str) -> bool {
        let is_name = word.contains(['_', '-'])
            || word
                .chars()
                .skip(1)
                .any(|character| character.is_uppercase());
        if word.len() < DISTINCT_CHARS_MIN || !is_name {
            return false;
        }
        // A tool the server offers as well is no mention.
        !self.has_tool(server, word) && self.other_server_with(server, word).is_some()
    }

    /// Returns a different server with this tool.
    fn other_server_with(&self, server: &str, tool: &str) -> Option<&Arc<str>> {
        let mut servers = self.tools.get(tool)?.iter();
        servers.find(|other| ***other != *server && self.servers.contains(*other))
    }
}
