//! The allowlist document: items enabled or disabled one by one by an operator, stored in a file.
//! Restricts every principal and never grants.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::call::FeatureKind;
use bowline_core::policy::EnabledFeatures;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::catalog::{Catalog, ListKind};

/// Supported document version.
pub const SCHEMA_VERSION: u32 = 1;

/// Maximum bytes of a document.
pub const DOCUMENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum entries of a document.
pub const ITEMS_MAX: usize = 100_000;

/// Enabled and disabled items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowlist {
    default_enabled: bool,
    items: BTreeMap<ItemKey, bool>,
}

/// An item of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ItemKey {
    server: Arc<str>,
    kind: ItemKind,
    name: Arc<str>,
}

/// Kinds of items. A resource template counts as a resource.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemKind {
    /// A tool.
    Tool,
    /// A resource.
    Resource,
    /// A prompt.
    Prompt,
}

/// A catalog item with its effective setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveItem {
    /// The server.
    pub server: Arc<str>,
    /// The kind.
    pub kind: ItemKind,
    /// The server's own name.
    pub name: Arc<str>,
    /// True if enabled.
    pub enabled: bool,
    /// True if the document names the item; otherwise the default applies.
    pub listed: bool,
}

/// Why a document is unusable.
#[derive(Debug, Error)]
pub enum AllowlistError {
    /// Too large.
    #[error("it is larger than {DOCUMENT_BYTES_MAX} bytes or has more than {ITEMS_MAX} items")]
    TooLarge,
    /// Not an allowlist document.
    #[error("it is no allowlist document")]
    Unreadable(#[source] serde_json::Error),
    /// Unknown version.
    #[error("its schemaVersion is {0}, and only {SCHEMA_VERSION} is known")]
    UnknownVersion(u32),
    /// Duplicate item.
    #[error("it names `{name}` of server `{server}` twice")]
    Twice {
        /// The server.
        server: Arc<str>,
        /// The duplicate name.
        name: Arc<str>,
    },
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct AllowlistDocument {
    schema_version: u32,
    #[serde(default = "on")]
    default_enabled: bool,
    #[serde(default)]
    items: Vec<AllowlistItem>,
}

#[derive(Deserialize, Serialize)]
struct AllowlistItem {
    server: Arc<str>,
    kind: ItemKind,
    name: Arc<str>,
    enabled: bool,
}

const fn on() -> bool {
    true
}

/// Everything is enabled.
impl Default for Allowlist {
    fn default() -> Self {
        Self {
            default_enabled: true,
            items: BTreeMap::new(),
        }
    }
}

impl Allowlist {
    /// Parses a document.
    ///
    /// # Errors
    /// Unusable document: the caller must not proceed as if everything were enabled.
    pub fn parse(text: &[u8]) -> Result<Self, AllowlistError> {
        if text.len() > DOCUMENT_BYTES_MAX {
            return Err(AllowlistError::TooLarge);
        }
        let document: AllowlistDocument =
            serde_json::from_slice(text).map_err(AllowlistError::Unreadable)?;
        if document.schema_version != SCHEMA_VERSION {
            return Err(AllowlistError::UnknownVersion(document.schema_version));
        }
        if document.items.len() > ITEMS_MAX {
            return Err(AllowlistError::TooLarge);
        }
        let mut items = BTreeMap::new();
        for AllowlistItem {
            server,
            kind,
            name,
            enabled,
        } in document.items
        {
            let entry = ItemKey {
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

    /// Serializes the document.
    #[must_use]
    pub fn to_json(&self) -> String {
        let items = self.items.iter().map(|(entry, enabled)| AllowlistItem {
            server: Arc::clone(&entry.server),
            kind: entry.kind,
            name: Arc::clone(&entry.name),
            enabled: *enabled,
        });
        let document = AllowlistDocument {
            schema_version: SCHEMA_VERSION,
            default_enabled: self.default_enabled,
            items: items.collect(),
        };
        // Strings, numbers and booleans always serialize.
        serde_json::to_string_pretty(&document).unwrap_or_default()
    }

    /// Overlays a document: its items and its default win.
    #[must_use]
    pub fn with_overlay(mut self, overlay: &Self) -> Self {
        let items = overlay.items.iter();
        self.items
            .extend(items.map(|(entry, enabled)| (entry.clone(), *enabled)));
        self.default_enabled = overlay.default_enabled;
        self
    }

    /// Enables or disables an item.
    pub fn set_enabled(&mut self, server: &str, kind: ItemKind, name: &str, enabled: bool) {
        let entry = ItemKey {
            server: server.into(),
            kind,
            name: name.into(),
        };
        self.items.insert(entry, enabled);
    }

    /// Returns the effective setting of every catalog item, in catalog order.
    #[must_use]
    pub fn effective_items(&self, catalog: &Catalog) -> Vec<EffectiveItem> {
        let mut all = Vec::new();
        for offer in catalog.servers() {
            for list in ListKind::ALL {
                let kind = ItemKind::from_list(list);
                for item in offer.list(list) {
                    let entry = ItemKey {
                        server: Arc::clone(&offer.server),
                        kind,
                        name: Arc::clone(&item.route.name),
                    };
                    let explicit = self.items.get(&entry).copied();
                    all.push(EffectiveItem {
                        server: entry.server,
                        kind,
                        name: entry.name,
                        enabled: explicit.unwrap_or(self.default_enabled),
                        listed: explicit.is_some(),
                    });
                }
            }
        }
        all
    }
}

impl ItemKind {
    const fn from_list(list: ListKind) -> Self {
        match list {
            ListKind::Tools => Self::Tool,
            ListKind::Prompts => Self::Prompt,
            ListKind::Resources | ListKind::Templates => Self::Resource,
        }
    }

    const fn feature_kind(self) -> FeatureKind {
        match self {
            Self::Tool => FeatureKind::Tool,
            Self::Resource => FeatureKind::Resource,
            Self::Prompt => FeatureKind::Prompt,
        }
    }
}

/// The form expected by [`Policy::with_enabled`](bowline_core::policy::Policy::with_enabled).
impl From<&Allowlist> for EnabledFeatures {
    fn from(list: &Allowlist) -> Self {
        let items = list.items.iter();
        items.fold(Self::new(list.default_enabled), |all, (entry, enabled)| {
            all.with_feature(
                entry.kind.feature_kind(),
                &entry.server,
                &entry.name,
                *enabled,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_allowlist(text: &str) -> Allowlist {
        Allowlist::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn document_roundtrips() {
        let list = parse_allowlist(
            r#"{"schemaVersion":1,"items":[
                {"server":"s","kind":"tool","name":"a","enabled":false},
                {"server":"s","kind":"prompt","name":"a","enabled":true}]}"#,
        );
        assert_eq!(parse_allowlist(&list.to_json()), list);
        let enabled = EnabledFeatures::from(&list);
        assert!(
            !enabled.is_enabled(FeatureKind::Tool, "s", "a")
                && enabled.is_enabled(FeatureKind::Tool, "s", "b")
        );
        assert_eq!(
            parse_allowlist(r#"{"schemaVersion":1}"#),
            Allowlist::default()
        );
        let closed = EnabledFeatures::from(&parse_allowlist(
            r#"{"schemaVersion":1,"defaultEnabled":false}"#,
        ));
        assert!(!closed.is_enabled(FeatureKind::Resource, "s", "x:1"));
    }

    #[test]
    fn overlay_items_and_default_win() {
        let mut base = Allowlist::default();
        base.set_enabled("s", ItemKind::Tool, "a", false);
        base.set_enabled("s", ItemKind::Tool, "b", false);
        let over = parse_allowlist(
            r#"{"schemaVersion":1,"defaultEnabled":false,"items":[
                {"server":"s","kind":"tool","name":"a","enabled":true},
                {"server":"s","kind":"resource","name":"b","enabled":true}]}"#,
        );
        let enabled = EnabledFeatures::from(&base.with_overlay(&over));
        let has = |kind, name| enabled.is_enabled(kind, "s", name);
        assert!(has(FeatureKind::Tool, "a") && !has(FeatureKind::Tool, "b"));
        assert!(has(FeatureKind::Resource, "b") && !has(FeatureKind::Tool, "c"));
    }

    #[test]
    fn unusable_document_is_refused() {
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
