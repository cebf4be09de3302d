//! List changes announced to clients, and the fingerprints that reveal them.

use bowline_host::catalog::{ListKind, PerList};
use bowline_wire::mcp::method;

/// List changes announced to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListChange {
    /// `notifications/tools/list_changed`.
    Tools,
    /// `notifications/prompts/list_changed`.
    Prompts,
    /// `notifications/resources/list_changed`, for resources and resource templates.
    Resources,
}

impl ListChange {
    /// All list changes.
    pub(crate) const ALL: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// Returns the notification method.
    #[must_use]
    pub(crate) const fn method(self) -> &'static str {
        match self {
            Self::Tools => method::TOOLS_LIST_CHANGED,
            Self::Prompts => method::PROMPTS_LIST_CHANGED,
            Self::Resources => method::RESOURCES_LIST_CHANGED,
        }
    }

    /// Returns whether any affected list has changed.
    pub(crate) fn has_changed(self, known: &ListFingerprints, lists: &ListFingerprints) -> bool {
        let mut own = self.list_kinds().iter().copied();
        own.any(|kind| known.get(kind) != lists.get(kind))
    }

    /// Copies the fingerprints of the affected lists.
    pub(crate) fn copy_fingerprints(self, known: &mut ListFingerprints, lists: &ListFingerprints) {
        for kind in self.list_kinds().iter().copied() {
            *known.get_mut(kind) = *lists.get(kind);
        }
    }

    /// Returns the affected lists.
    const fn list_kinds(self) -> &'static [ListKind] {
        match self {
            Self::Tools => &[ListKind::Tools],
            Self::Prompts => &[ListKind::Prompts],
            Self::Resources => &[ListKind::Resources, ListKind::Templates],
        }
    }
}

/// Fingerprints of the lists visible to a client.
pub(crate) type ListFingerprints = PerList<[u8; 32]>;
