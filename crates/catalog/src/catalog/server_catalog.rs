//! The catalog entries of a server: its definitions as written, and lookup by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::call::{CallSubject, Effect, Route};
use bowline_core::era::Era;
use bowline_core::name;
use bowline_core::pins::PinKind;
use bowline_core::time::MonotonicTime;
use bowline_core::uri_template::UriTemplate;
use bowline_wire::ByteSpan;
use bowline_wire::era::header_params::{self, HeaderParamError};
use bowline_wire::object;
use bowline_wire::scan::{self, KeyPolicy};
use bowline_wire::splice::{ByteEdit, EditedText, write_string};
use bytes::Bytes;

use super::catalog_list::CatalogList;
use super::definition::{annotation, definition_digest};
use super::definition_marks::{DefinitionMarks, apply_marks};
use super::initialize_field::{self, InitializeField};
use super::queued_schema::with_queued_variant;
use super::{ListKind, PerList};
use crate::spec::ToolRule;

/// The pages of the lists read.
pub type ListPages = PerList<Option<Vec<Bytes>>>;

/// The catalog entries of a server.
#[derive(Clone, Debug)]
pub struct ServerCatalog {
    /// The server.
    pub server: Arc<str>,
    /// The result of `initialize` as shown to clients, without fields withdrawn until approval.
    pub initialize: Bytes,
    /// The result of `initialize` as written by the server.
    pub(super) raw_initialize: Bytes,
    /// Marks on the result of `initialize`.
    pub(super) marks: DefinitionMarks,
    /// The tools, in the server's order.
    pub tools: CatalogList,
    /// The prompts.
    pub prompts: CatalogList,
    /// The resources.
    pub resources: CatalogList,
    /// The resource templates.
    pub templates: CatalogList,
    /// Live or last known.
    pub staleness: Staleness,
}

/// Whether entries come from a current link or from an earlier link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Staleness {
    /// From the current link, or from an idle lazy server.
    #[default]
    Live,
    /// From an earlier link; the server is down or starting.
    LastKnown,
}

/// Handling of tools with unusable header parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderParamPolicy {
    /// Omit the tool: the server would refuse every call.
    Enforce,
    /// Keep the tool: the server receives no header parameters.
    Ignore,
}

/// Visibility of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemVisibility {
    /// Listed, with these marks.
    Show(DefinitionMarks),
    /// Not listed; calls are refused.
    Withdraw,
}

/// A tool, prompt, resource or template.
#[derive(Clone, Debug)]
pub struct CatalogItem {
    /// Route of calls.
    pub route: Arc<Route>,
    /// Name or URI on `/mcp`.
    pub visible: Arc<str>,
    /// The definition as shown to clients: unchanged bytes except for gateway marks and, for queued
    /// tools, the queued variant of the output schema.
    pub definition: Bytes,
    /// The definition without the queued variant.
    pub unqueued_definition: Bytes,
    /// The parsed URI template, if valid.
    pub template: Option<UriTemplate>,
    /// The definition as written by the server.
    pub raw_definition: Bytes,
    /// Pin key: name or URI, numbered if duplicated in the list.
    pub pin_key: Arc<str>,
    /// Position of the name or URI in `definition`.
    name_at: ByteSpan,
    /// Position in the server's order.
    pub(super) nth: usize,
    /// The era of the definition.
    pub(super) era: Era,
    /// Live or last known.
    pub staleness: Staleness,
}

impl ServerCatalog {
    /// Builds the entries from the pages read at `read_at`; lists not read stay as in `before`.
    #[must_use]
    pub fn new(
        server: &Arc<str>,
        initialize: &Bytes,
        pages: &ListPages,
        rules: &BTreeMap<String, ToolRule>,
        header_policy: HeaderParamPolicy,
        before: Option<&Self>,
        read_at: Option<MonotonicTime>,
    ) -> Self {
        let shelf = |kind| match (pages.get(kind), before) {
            (Some(pages), _) => {
                CatalogList::new(kind, server, pages, rules, header_policy).with_read_at(read_at)
            }
            (None, Some(before)) => before.list(kind).clone(),
            (None, None) => CatalogList::new(kind, server, &[], rules, header_policy),
        };
        Self {
            server: Arc::clone(server),
            initialize: initialize.clone(),
            raw_initialize: initialize.clone(),
            marks: DefinitionMarks::default(),
            tools: shelf(ListKind::Tools),
            prompts: shelf(ListKind::Prompts),
            resources: shelf(ListKind::Resources),
            templates: shelf(ListKind::Templates),
            staleness: Staleness::Live,
        }
        .with_staleness(Staleness::Live)
    }

    /// Returns the entries with this staleness.
    #[must_use]
    pub fn with_staleness(mut self, age: Staleness) -> Self {
        self.staleness = age;
        for kind in ListKind::ALL {
            let shelf = self.list_mut(kind);
            if shelf.all_items().any(|item| item.staleness != age) {
                *shelf = shelf.with_staleness(kind, age);
            }
        }
        self
    }

    /// Returns the entries filtered by `visibility`, and the fields of `initialize` filtered by
    /// `field_visibility`.
    #[must_use]
    pub fn filter_items(
        &self,
        visibility: impl Fn(ListKind, &CatalogItem) -> ItemVisibility,
        field_visibility: impl Fn(&InitializeField) -> ItemVisibility,
    ) -> Self {
        let filtered = |kind| {
            self.list(kind)
                .filter_items(kind, |item| visibility(kind, item))
        };
        let (initialize, marks) =
            initialize_field::filter_fields(&self.raw_initialize, field_visibility);
        Self {
            initialize,
            marks,
            tools: filtered(ListKind::Tools),
            prompts: filtered(ListKind::Prompts),
            resources: filtered(ListKind::Resources),
            templates: filtered(ListKind::Templates),
            ..self.clone()
        }
    }

    /// Returns the pinned fields of `initialize`.
    pub fn initialize_fields(&self) -> [InitializeField; 2] {
        initialize_field::read_fields(&self.raw_initialize)
    }

    /// True if an item has this pin key.
    pub fn has_pin_key(&self, kind: PinKind, name: &str) -> bool {
        let list = ListKind::ALL
            .into_iter()
            .find(|list| list.pin_kind() == kind);
        // The fields of `initialize` always exist.
        list.is_none_or(|list| {
            self.list(list)
                .all_items()
                .any(|item| *item.pin_key == *name)
        })
    }

    /// Returns the route of a withdrawn prompt, resource or template.
    pub(super) fn withdrawn_route(&self, subject: &CallSubject) -> Option<&Arc<Route>> {
        let name = subject.name();
        match subject {
            CallSubject::Tool(_) => self.tools.withdrawn_route(name),
            CallSubject::Prompt(_) | CallSubject::CompletePrompt(_) => {
                self.prompts.withdrawn_route(name)
            }
            CallSubject::Resource(_) => self.resources.withdrawn_route(name),
            CallSubject::CompleteResource(_) => {
                let template = self.templates.withdrawn_route(name);
                template.or_else(|| self.resources.withdrawn_route(name))
            }
            CallSubject::Task { .. } => None,
        }
    }

    /// Returns a list.
    #[must_use]
    pub const fn list(&self, kind: ListKind) -> &CatalogList {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::Templates => &self.templates,
        }
    }

    /// True if both list the same items and route calls the same way.
    pub(super) fn has_same_items(&self, other: &Self) -> bool {
        let alike = |kind| {
            let fingerprint = |offer: &Self| offer.list(kind).rendered.fingerprint;
            fingerprint(self) == fingerprint(other)
        };
        let routes = |offer: &Self| -> Vec<_> {
            let items = ListKind::ALL.into_iter();
            let items = items.flat_map(|kind| offer.list(kind).all_items());
            items.map(|item| Arc::clone(&item.route)).collect()
        };
        let introduced = |offer: &Self| {
            let Self {
                initialize,
                raw_initialize: raw,
                ..
            } = offer;
            (initialize.clone(), raw.clone(), offer.marks.clone())
        };
        introduced(self) == introduced(other)
            && ListKind::ALL.into_iter().all(alike)
            && routes(self) == routes(other)
    }

    /// True if staleness and cache hints are equal too.
    pub(super) fn has_same_freshness(&self, other: &Self) -> bool {
        let alike = |kind| {
            let freshness = |offer: &Self| (offer.list(kind).hint, offer.list(kind).expires_at());
            freshness(self) == freshness(other)
        };
        self.staleness == other.staleness && ListKind::ALL.into_iter().all(alike)
    }

    pub(super) const fn list_mut(&mut self, kind: ListKind) -> &mut CatalogList {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::Templates => &mut self.templates,
        }
    }
}

impl CatalogItem {
    pub(super) fn parse(
        kind: ListKind,
        server: &Arc<str>,
        definition: Bytes,
        rules: &BTreeMap<String, ToolRule>,
    ) -> Option<Self> {
        // With a duplicate member, gateway and client might read different names.
        scan::check_json(&definition, KeyPolicy::UniqueOutermost).ok()?;
        let name_at = object::field(&definition, kind.id_member())?;
        let own: Arc<str> = object::parse_string(name_at.slice(&definition))?.into();
        let visible = match kind {
            ListKind::Tools | ListKind::Prompts => name::visible_name(server, &own).into(),
            ListKind::Resources | ListKind::Templates => Arc::clone(&own),
        };
        let rule = match kind {
            ListKind::Tools => rules.get(own.as_ref()).cloned().unwrap_or_default(),
            // Only tools have effects.
            ListKind::Prompts | ListKind::Resources | ListKind::Templates => ToolRule {
                effect: Some(Effect::Read),
                ..ToolRule::default()
            },
        };
        let pinned = Arc::clone(&own);
        let hint = |key| annotation(&definition, key);
        let effect = rule.effect.unwrap_or_else(|| match hint("readOnlyHint") {
            Some(true) => Effect::Read,
            Some(false) => Effect::Write,
            None => Effect::Unknown,
        });
        Some(Self {
            visible,
            template: (kind == ListKind::Templates)
                .then(|| UriTemplate::parse(&own))
                .flatten(),
            route: Arc::new(Route {
                server: Arc::clone(server),
                name: own,
                effect,
                is_idempotent: rule.idempotent.or_else(|| hint("idempotentHint")) == Some(true),
                timeout: rule.timeout,
                definition_hash: definition_digest(&definition),
                queue_policy: rule.queue_policy(effect).map(Arc::new),
                header_params: None,
            }),
            pin_key: Arc::clone(&pinned),
            raw_definition: definition.clone(),
            unqueued_definition: definition.clone(),
            definition,
            name_at,
            nth: 0,
            era: Era::Legacy,
            staleness: Staleness::Live,
        })
    }

    /// Returns the item with exactly these marks.
    pub(super) fn with_marks(self, kind: ListKind, marks: &DefinitionMarks) -> Self {
        let plain = apply_marks(&self.raw_definition, marks);
        let definition = match self.route.queue_policy {
            Some(_) => with_queued_variant(&plain),
            None => plain.clone(),
        };
        let name_at = object::field(&definition, kind.id_member()).unwrap_or(self.name_at);
        Self {
            definition,
            unqueued_definition: plain,
            name_at,
            ..self
        }
    }

    /// Reads the header parameters from the input schema, or why they are unusable.
    pub(super) fn with_header_params(self, kind: ListKind) -> (Self, Option<HeaderParamError>) {
        if kind != ListKind::Tools {
            return (self, None);
        }
        let schema = object::field(&self.raw_definition, "inputSchema")
            .map(|at| at.slice(&self.raw_definition));
        match header_params::parse_header_params(schema.unwrap_or_default()) {
            Ok(mirrors) if mirrors.is_empty() => (self, None),
            Ok(mirrors) => {
                let route = Route {
                    header_params: Some(mirrors.into()),
                    ..Route::clone(&self.route)
                };
                let route = Arc::new(route);
                (Self { route, ..self }, None)
            }
            Err(error) => (self, Some(error)),
        }
    }

    /// Writes the definition under the server's own name.
    pub fn write_definition(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.definition);
    }

    /// Writes the definition under the visible name, all other bytes unchanged.
    pub fn write_visible(&self, out: &mut Vec<u8>) {
        if self.visible == self.route.name {
            out.extend_from_slice(&self.definition);
            return;
        }
        let mut literal = Vec::with_capacity(self.visible.len() + 2);
        write_string(&mut literal, &self.visible);
        EditedText {
            source: &self.definition,
            edits: &[ByteEdit {
                at: self.name_at,
                with: literal.into(),
            }],
        }
        .write(out);
    }
}
