//! The names of all servers and tools, by which one sees that a tool looks like another or speaks
//! of it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::letters::skeleton;
use crate::name::SEPARATOR;
use crate::pins::{NAME_BYTES_MAX, TOOLS_MAX};

/// Shorter names are words of their own.
const DISTINCT_CHARS_MIN: usize = 8;

/// Begins another common form of a visible name.
const PREFIX: &str = "mcp_";

/// All names.
#[derive(Clone, Debug, Default)]
pub struct Names {
    servers: HashSet<Arc<str>, RandomState>,
    /// Which servers have a tool of that name.
    tools: HashMap<Arc<str>, BTreeSet<Arc<str>>, RandomState>,
    /// How many tools of each server are known.
    counts: HashMap<Arc<str>, usize, RandomState>,
    /// Which names of tools look like that.
    looks: HashMap<Box<str>, BTreeSet<Arc<str>>, RandomState>,
}

impl Names {
    /// Learns which servers there are; others than these are forgotten.
    pub fn know<'a>(&mut self, servers: impl IntoIterator<Item = &'a Arc<str>>) {
        self.servers = servers.into_iter().cloned().collect();
    }

    /// Learns that there is one server more.
    pub fn meet(&mut self, server: &Arc<str>) {
        self.servers.insert(Arc::clone(server));
    }

    /// Whether this tool is known.
    #[must_use]
    pub fn has(&self, server: &str, tool: &str) -> bool {
        let servers = self.tools.get(tool);
        servers.is_some_and(|servers| servers.contains(server))
    }

    /// Whether this server is known.
    #[must_use]
    pub fn knows(&self, server: &str) -> bool {
        self.servers.contains(server)
    }

    /// Learns that a server has a tool. A server that calls its tools anew again and again is
    /// heard so often and no more.
    pub fn add(&mut self, server: &Arc<str>, tool: &Arc<str>) {
        let count = self.counts.entry(Arc::clone(server)).or_default();
        if *count >= TOOLS_MAX || tool.len() > NAME_BYTES_MAX {
            return;
        }
        let servers = self.tools.entry(Arc::clone(tool)).or_default();
        *count += usize::from(servers.insert(Arc::clone(server)));
        let looks = self.looks.entry(skeleton(tool).into()).or_default();
        looks.insert(Arc::clone(tool));
    }

    /// Returns the tool or server of others that `name` of `server` looks like without being it.
    pub(super) fn confusable(&self, server: &str, name: &str) -> Option<String> {
        let look = skeleton(name);
        // Of a plain name and one in disguise, the plain one is honest.
        if look == name {
            return None;
        }
        let tools = self.looks.get(look.as_str()).into_iter().flatten();
        for tool in tools.filter(|tool| ***tool != *name) {
            if let Some(other) = self.other_with(server, tool) {
                return Some(format!("{other}.{tool}"));
            }
        }
        let like = self.servers.get(look.as_str());
        let like = like.filter(|like| ***like != *name && ***like != *server);
        like.map(|like| like.as_ref().to_owned())
    }

    /// Returns the first tool of another server that a text of `server` names.
    pub(super) fn mentioned(&self, server: &str, text: &str) -> Option<String> {
        let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.');
        let words = text.split(|letter| !is_part(letter));
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
        if let Some((other, tool)) = word.strip_prefix(PREFIX).and_then(|s| s.split_once('_'))
            && is_other(other)
            && !tool.is_empty()
        {
            return true;
        }
        // Many texts have a word with a dot in it, so the tool must be there as well.
        if let Some((other, tool)) = word.split_once('.')
            && is_other(other)
            && self.has(other, tool)
        {
            return true;
        }
        self.is_distinct(server, word)
    }

    /// Whether a word can only mean a tool, and one of another server.
    fn is_distinct(&self, server: &str, word: &str) -> bool {
        let is_name =
            word.contains(['_', '-']) || word.chars().skip(1).any(|letter| letter.is_uppercase());
        if word.len() < DISTINCT_CHARS_MIN || !is_name {
            return false;
        }
        // A tool that it has itself is its own.
        !self.has(server, word) && self.other_with(server, word).is_some()
    }

    /// Returns another server that has this tool.
    fn other_with(&self, server: &str, tool: &str) -> Option<&Arc<str>> {
        let mut servers = self.tools.get(tool)?.iter();
        servers.find(|other| ***other != *server && self.servers.contains(*other))
    }
}
