//! What one server offers: its definitions as it wrote them, and how to find them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::call::{Effect, Route, Subject};
use bowline_core::era::Era;
use bowline_core::name;
use bowline_core::pins::PinKind;
use bowline_core::template::Template;
use bowline_core::time::Now;
use bowline_wire::era::mirror::{self, BadMirror};
use bowline_wire::object;
use bowline_wire::scan::{self, Keys};
use bowline_wire::span::Span;
use bowline_wire::splice::{Edit, Edited, write_string};
use bytes::Bytes;

use super::definition::{digest, hinted};
use super::mark::{Marks, mark};
use super::part::{self, Part};
use super::shelf::Shelf;
use super::widened::widened;
use super::{ListKind, PerList};
use crate::spec::ToolRule;

/// The pages of those lists that were read.
pub type Pages = PerList<Option<Vec<Bytes>>>;

/// What one server offers.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The server.
    pub server: Arc<str>,
    /// What it said of itself, as clients are shown it: its result of `initialize`, without those
    /// parts that are withdrawn until a person accepts them.
    pub initialize: Bytes,
    /// The same as the server wrote it.
    pub(super) said: Bytes,
    /// What of it is marked.
    pub(super) marks: Marks,
    /// Its tools, in its own order.
    pub tools: Shelf,
    /// Its prompts.
    pub prompts: Shelf,
    /// Its resources.
    pub resources: Shelf,
    /// Its templates of resources.
    pub templates: Shelf,
    /// Whether it serves, or only did.
    pub age: Age,
}

/// Whether what is offered is known from a server that serves, or from before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    /// As the server says it, or will when it is needed.
    #[default]
    Live,
    /// As the server said it when it last served; it is down, or being started.
    LastKnown,
}

/// What is done about a tool whose definition wants arguments in headers that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirroring {
    /// It is left out: its server would refuse every call of it.
    Needed,
    /// It is offered, since no headers go to its server.
    Idle,
}

/// What becomes of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is offered, with these marks.
    Show(Marks),
    /// It is not offered, and calls of it are refused.
    Withdraw,
}

/// One tool, prompt, resource or template.
#[derive(Clone, Debug)]
pub struct Item {
    /// Where a call of it goes.
    pub route: Arc<Route>,
    /// Its name or URI on `/mcp`.
    pub visible: Arc<str>,
    /// Its definition as clients are shown it: byte for byte, but for our own marks and, where
    /// it is queued, for what a queued call answers.
    pub definition: Bytes,
    /// The same without the latter.
    pub plain: Bytes,
    /// The URIs it stands for, where it is a template that can be read.
    pub template: Option<Template>,
    /// Its definition as the server wrote it.
    pub(crate) written: Bytes,
    /// What it is pinned by: its name or URI, with a number where its list has that more than once.
    pub(crate) pinned: Arc<str>,
    /// Where in `definition` the value of its name or URI stands.
    name_at: Span,
    /// Its place in the server's own order.
    pub(super) nth: usize,
    /// The era it is written in.
    pub(super) era: Era,
    /// Whether its server serves.
    pub(crate) age: Age,
}

impl Offer {
    /// Builds an offer from the lists that were read, at `read_at` where they were just now; the
    /// others stay as they were `before`.
    #[must_use]
    pub fn new(
        server: &Arc<str>,
        initialize: &Bytes,
        pages: &Pages,
        (rules, mirroring): (&BTreeMap<String, ToolRule>, Mirroring),
        before: Option<&Self>,
        read_at: Option<Now>,
    ) -> Self {
        let shelf = |kind| match (pages.get(kind), before) {
            (Some(pages), _) => {
                Shelf::new(kind, server, pages, (rules, mirroring)).read_at(read_at)
            }
            (None, Some(before)) => before.shelf(kind).clone(),
            (None, None) => Shelf::new(kind, server, &[], (rules, mirroring)),
        };
        Self {
            server: Arc::clone(server),
            initialize: initialize.clone(),
            said: initialize.clone(),
            marks: Marks::default(),
            tools: shelf(ListKind::Tools),
            prompts: shelf(ListKind::Prompts),
            resources: shelf(ListKind::Resources),
            templates: shelf(ListKind::Templates),
            age: Age::Live,
        }
        .aged(Age::Live)
    }

    /// Returns the same offer as one that is known so.
    #[must_use]
    pub(crate) fn aged(mut self, age: Age) -> Self {
        self.age = age;
        for kind in ListKind::ALL {
            let shelf = self.shelf_mut(kind);
            if shelf.all().any(|item| item.age != age) {
                *shelf = shelf.aged(kind, age);
            }
        }
        self
    }

    /// Returns the same offer with every entry dealt with as `verdict` says, and every part of
    /// the introduction as `of_part` does.
    #[must_use]
    pub(crate) fn judged(
        &self,
        verdict: impl Fn(ListKind, &Item) -> Verdict,
        of_part: impl Fn(&Part) -> Verdict,
    ) -> Self {
        let judged = |kind| self.shelf(kind).judged(kind, |item| verdict(kind, item));
        let (initialize, marks) = part::judged(&self.said, of_part);
        Self {
            initialize,
            marks,
            tools: judged(ListKind::Tools),
            prompts: judged(ListKind::Prompts),
            resources: judged(ListKind::Resources),
            templates: judged(ListKind::Templates),
            ..self.clone()
        }
    }

    /// Returns what of its introduction is pinned.
    pub(crate) fn parts(&self) -> [Part; 2] {
        part::read(&self.said)
    }

    /// Whether it has an entry that is pinned so.
    pub(crate) fn is_pinned(&self, kind: PinKind, name: &str) -> bool {
        let list = ListKind::ALL.into_iter().find(|list| list.pinned() == kind);
        // The introduction is always there.
        list.is_none_or(|list| self.shelf(list).all().any(|item| *item.pinned == *name))
    }

    /// Returns the way to a prompt, resource or template that is not offered until a person
    /// accepts it.
    pub(super) fn withdrawn(&self, subject: &Subject) -> Option<&Arc<Route>> {
        let name = subject.name();
        match subject {
            Subject::Tool(_) => self.tools.withdrawn(name),
            Subject::Prompt(_) | Subject::CompletePrompt(_) => self.prompts.withdrawn(name),
            Subject::Resource(_) => self.resources.withdrawn(name),
            Subject::CompleteResource(_) => {
                let template = self.templates.withdrawn(name);
                template.or_else(|| self.resources.withdrawn(name))
            }
            Subject::Task { .. } => None,
        }
    }

    /// Returns one of its lists.
    #[must_use]
    pub const fn shelf(&self, kind: ListKind) -> &Shelf {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::Templates => &self.templates,
        }
    }

    /// Whether two offers list and say the same, and calls of them are treated the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let alike = |kind| {
            let of = |offer: &Self| offer.shelf(kind).listing.fingerprint;
            of(self) == of(other)
        };
        let routes = |offer: &Self| -> Vec<_> {
            let items = ListKind::ALL.into_iter();
            let items = items.flat_map(|kind| offer.shelf(kind).all());
            items.map(|item| Arc::clone(&item.route)).collect()
        };
        let introduced = |offer: &Self| {
            let Self {
                initialize, said, ..
            } = offer;
            (initialize.clone(), said.clone(), offer.marks.clone())
        };
        introduced(self) == introduced(other)
            && ListKind::ALL.into_iter().all(alike)
            && routes(self) == routes(other)
    }

    /// Whether the same holds for two offers that are alike: how they are known, and how long.
    pub(super) fn is_told_like(&self, other: &Self) -> bool {
        let alike = |kind| {
            let of = |offer: &Self| (offer.shelf(kind).hint, offer.shelf(kind).good_until());
            of(self) == of(other)
        };
        self.age == other.age && ListKind::ALL.into_iter().all(alike)
    }

    pub(super) const fn shelf_mut(&mut self, kind: ListKind) -> &mut Shelf {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::Templates => &mut self.templates,
        }
    }
}

impl Item {
    pub(super) fn read(
        kind: ListKind,
        server: &Arc<str>,
        definition: Bytes,
        rules: &BTreeMap<String, ToolRule>,
    ) -> Option<Self> {
        // With a member that comes twice, we and a client might read different names.
        scan::check(&definition, Keys::UniqueOutside).ok()?;
        let name_at = object::field(&definition, kind.id())?;
        let own: Arc<str> = object::string(name_at.of(&definition))?.into();
        let visible = match kind {
            ListKind::Tools | ListKind::Prompts => name::visible(server, &own).into(),
            ListKind::Resources | ListKind::Templates => Arc::clone(&own),
        };
        let rule = match kind {
            ListKind::Tools => rules.get(own.as_ref()).cloned().unwrap_or_default(),
            // Only tools do anything.
            ListKind::Prompts | ListKind::Resources | ListKind::Templates => ToolRule {
                effect: Some(Effect::Read),
                ..ToolRule::default()
            },
        };
        let pinned = Arc::clone(&own);
        let hint = |key| hinted(&definition, key);
        let effect = rule.effect.unwrap_or_else(|| match hint("readOnlyHint") {
            Some(true) => Effect::Read,
            Some(false) => Effect::Write,
            None => Effect::Unknown,
        });
        Some(Self {
            visible,
            template: (kind == ListKind::Templates)
                .then(|| Template::parse(&own))
                .flatten(),
            route: Arc::new(Route {
                server: Arc::clone(server),
                name: own,
                effect,
                idempotent: rule.idempotent.or_else(|| hint("idempotentHint")) == Some(true),
                timeout: rule.timeout,
                definition: digest(&definition),
                queue: rule.queueing(effect).map(Arc::new),
                mirrors: None,
            }),
            pinned: Arc::clone(&pinned),
            written: definition.clone(),
            plain: definition.clone(),
            definition,
            name_at,
            nth: 0,
            era: Era::Legacy,
            age: Age::Live,
        })
    }

    /// Returns the same entry with these marks and no others.
    pub(super) fn marked(self, kind: ListKind, marks: &Marks) -> Self {
        let plain = mark(&self.written, marks);
        let definition = match self.route.queue {
            Some(_) => widened(&plain),
            None => plain.clone(),
        };
        let name_at = object::field(&definition, kind.id()).unwrap_or(self.name_at);
        Self {
            definition,
            plain,
            name_at,
            ..self
        }
    }

    /// Reads which arguments are repeated in headers, or why that cannot be.
    pub(super) fn mirrored(self, kind: ListKind) -> (Self, Option<BadMirror>) {
        if kind != ListKind::Tools {
            return (self, None);
        }
        let schema = object::field(&self.written, "inputSchema").map(|at| at.of(&self.written));
        match mirror::read(schema.unwrap_or_default()) {
            Ok(mirrors) if mirrors.is_empty() => (self, None),
            Ok(mirrors) => {
                let route = Route {
                    mirrors: Some(mirrors.into()),
                    ..Route::clone(&self.route)
                };
                let route = Arc::new(route);
                (Self { route, ..self }, None)
            }
            Err(why) => (self, Some(why)),
        }
    }

    /// Writes the definition under its own name.
    pub fn write_definition(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.definition);
    }

    /// Writes the definition under its visible name, every other byte unchanged.
    pub fn write_visible(&self, out: &mut Vec<u8>) {
        if self.visible == self.route.name {
            out.extend_from_slice(&self.definition);
            return;
        }
        let mut literal = Vec::with_capacity(self.visible.len() + 2);
        write_string(&mut literal, &self.visible);
        Edited {
            source: &self.definition,
            edits: &[Edit {
                at: self.name_at,
                with: &literal,
            }],
        }
        .write(out);
    }
}
