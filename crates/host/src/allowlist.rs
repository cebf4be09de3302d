//! The allowlist document: things of servers that a person switched on or off one by one, in a
//! file that survives. It takes away for everybody and never grants.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::call::Kind;
use bowline_core::policy::Enabled;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::catalog::{Catalog, ListKind};

/// The version of the document that is read and written.
pub const SCHEMA_VERSION: u32 = 1;

/// Bytes of a document.
pub const DOCUMENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Entries of a document.
pub const ITEMS_MAX: usize = 100_000;

/// What is switched on and off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowlist {
    default_enabled: bool,
    items: BTreeMap<Entry, bool>,
}

/// One thing of one server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    server: Arc<str>,
    kind: ItemKind,
    name: Arc<str>,
}

/// The kinds of things that can be switched. A template of resources is a resource.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemKind {
    /// Something that runs.
    Tool,
    /// Something to read.
    Resource,
    /// A text to fill in.
    Prompt,
}

/// One thing that is there, and whether it is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effective {
    /// The server.
    pub server: Arc<str>,
    /// What it is.
    pub kind: ItemKind,
    /// The server's own name of it.
    pub name: Arc<str>,
    /// Whether it is on.
    pub enabled: bool,
    /// Whether the document names it; otherwise its default holds.
    pub listed: bool,
}

/// Why a document cannot be used.
#[derive(Debug, Error)]
pub enum AllowlistError {
    /// There is too much.
    #[error("it is larger than {DOCUMENT_BYTES_MAX} bytes or has more than {ITEMS_MAX} items")]
    TooLarge,
    /// It is no such document.
    #[error("it is no allowlist document")]
    Unreadable(#[source] serde_json::Error),
    /// It is of a version that is not known.
    #[error("its schemaVersion is {0}, and only {SCHEMA_VERSION} is known")]
    UnknownVersion(u32),
    /// It says two things of one.
    #[error("it names `{name}` of server `{server}` twice")]
    Twice {
        /// The server.
        server: Arc<str>,
        /// What is named twice.
        name: Arc<str>,
    },
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: u32,
    #[serde(default = "on")]
    default_enabled: bool,
    #[serde(default)]
    items: Vec<Item>,
}

#[derive(Deserialize, Serialize)]
struct Item {
    server: Arc<str>,
    kind: ItemKind,
    name: Arc<str>,
    enabled: bool,
}

const fn on() -> bool {
    true
}

/// Nothing is switched off.
impl Default for Allowlist {
    fn default() -> Self {
        Self {
            default_enabled: true,
            items: BTreeMap::new(),
        }
    }
}

impl Allowlist {
    /// Reads a document.
    ///
    /// # Errors
    /// It cannot be used: whoever reads it must not go on as if nothing were switched off.
    pub fn parse(text: &[u8]) -> Result<Self, AllowlistError> {
        if text.len() > DOCUMENT_BYTES_MAX {
            return Err(AllowlistError::TooLarge);
        }
        let document: Document =
            serde_json::from_slice(text).map_err(AllowlistError::Unreadable)?;
        if document.schema_version != SCHEMA_VERSION {
            return Err(AllowlistError::UnknownVersion(document.schema_version));
        }
        if document.items.len() > ITEMS_MAX {
            return Err(AllowlistError::TooLarge);
        }
        let mut items = BTreeMap::new();
        for Item {
            server,
            kind,
            name,
            enabled,
        } in document.items
        {
            let entry = Entry {
                server: Arc::clone(&server),
                kind,
                name: Arc::clone(&name),
            };
            if items.insert(entry, enabled).is_some() {
                return Err(AllowlistError::Twice { server, name });
            }
        }
        Ok(Self {
            default_enabled: document.default_enabled,
            items,
        })
    }

    /// Returns it as a document.
    #[must_use]
    pub fn written(&self) -> String {
        let items = self.items.iter().map(|(entry, enabled)| Item {
            server: Arc::clone(&entry.server),
            kind: entry.kind,
            name: Arc::clone(&entry.name),
            enabled: *enabled,
        });
        let document = Document {
            schema_version: SCHEMA_VERSION,
            default_enabled: self.default_enabled,
            items: items.collect(),
        };
        // Text, numbers and booleans can always be written.
        serde_json::to_string_pretty(&document).unwrap_or_default()
    }

    /// Lays another document over this one: it replaces what both name, and its default holds.
    #[must_use]
    pub fn overlaid(mut self, over: &Self) -> Self {
        let items = over.items.iter();
        self.items
            .extend(items.map(|(entry, enabled)| (entry.clone(), *enabled)));
        self.default_enabled = over.default_enabled;
        self
    }

    /// Switches one thing on or off.
    pub fn switch(&mut self, server: &str, kind: ItemKind, name: &str, enabled: bool) {
        let entry = Entry {
            server: server.into(),
            kind,
            name: name.into(),
        };
        self.items.insert(entry, enabled);
    }

    /// Returns what of all that servers offer is on and off, in the order of the catalog.
    #[must_use]
    pub fn project(&self, catalog: &Catalog) -> Vec<Effective> {
        let mut all = Vec::new();
        for offer in catalog.offers() {
            for list in ListKind::ALL {
                let kind = ItemKind::of(list);
                for item in offer.shelf(list) {
                    let entry = Entry {
                        server: Arc::clone(&offer.server),
                        kind,
                        name: Arc::clone(&item.route.name),
                    };
                    let said = self.items.get(&entry).copied();
                    all.push(Effective {
                        server: entry.server,
                        kind,
                        name: entry.name,
                        enabled: said.unwrap_or(self.default_enabled),
                        listed: said.is_some(),
                    });
                }
            }
        }
        all
    }
}

impl ItemKind {
    const fn of(list: ListKind) -> Self {
        match list {
            ListKind::Tools => Self::Tool,
            ListKind::Prompts => Self::Prompt,
            ListKind::Resources | ListKind::Templates => Self::Resource,
        }
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Tool => Kind::Tool,
            Self::Resource => Kind::Resource,
            Self::Prompt => Kind::Prompt,
        }
    }
}

/// What [`Policy::with_enabled`](bowline_core::policy::Policy::with_enabled) takes.
impl From<&Allowlist> for Enabled {
    fn from(list: &Allowlist) -> Self {
        let items = list.items.iter();
        items.fold(Self::new(list.default_enabled), |all, (entry, enabled)| {
            all.with(entry.kind.kind(), &entry.server, &entry.name, *enabled)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Allowlist {
        Allowlist::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_document_reads_back_as_it_was_written() {
        let list = read(
            r#"{"schemaVersion":1,"items":[
                {"server":"s","kind":"tool","name":"a","enabled":false},
                {"server":"s","kind":"prompt","name":"a","enabled":true}]}"#,
        );
        assert_eq!(read(&list.written()), list);
        let enabled = Enabled::from(&list);
        assert!(!enabled.has(Kind::Tool, "s", "a") && enabled.has(Kind::Tool, "s", "b"));
        assert_eq!(read(r#"{"schemaVersion":1}"#), Allowlist::default());
        let closed = Enabled::from(&read(r#"{"schemaVersion":1,"defaultEnabled":false}"#));
        assert!(!closed.has(Kind::Resource, "s", "x:1"));
    }

    #[test]
    fn an_overlay_replaces_what_both_name_and_its_default_holds() {
        let mut base = Allowlist::default();
        base.switch("s", ItemKind::Tool, "a", false);
        base.switch("s", ItemKind::Tool, "b", false);
        let over = read(
            r#"{"schemaVersion":1,"defaultEnabled":false,"items":[
                {"server":"s","kind":"tool","name":"a","enabled":true},
                {"server":"s","kind":"resource","name":"b","enabled":true}]}"#,
        );
        let enabled = Enabled::from(&base.overlaid(&over));
        let has = |kind, name| enabled.has(kind, "s", name);
        assert!(has(Kind::Tool, "a") && !has(Kind::Tool, "b"));
        assert!(has(Kind::Resource, "b") && !has(Kind::Tool, "c"));
    }

    #[test]
    fn a_document_that_cannot_be_used_is_refused() {
        let twice = r#"{"server":"s","kind":"tool","name":"a","enabled":true}"#;
        for text in [
            "",
            "[]",
            r#"{"items":[]}"#,
            r#"{"schemaVersion":2}"#,
            r#"{"schemaVersion":1,"items":[{"server":"s","kind":"task","name":"a","enabled":true}]}"#,
            r#"{"schemaVersion":1,"items":[{"server":"s","kind":"tool","name":"a"}]}"#,
            &format!(r#"{{"schemaVersion":1,"items":[{twice},{twice}]}}"#),
            &" ".repeat(DOCUMENT_BYTES_MAX + 1),
        ] {
            assert!(Allowlist::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
