//! The four lists of the protocol, and what differs between them.

use bowline_core::call::Kind;
use bowline_core::pins::PinKind;
use bowline_wire::mcp::method;

/// The lists of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// `tools/list`.
    Tools,
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    Templates,
}

impl ListKind {
    /// Every list.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// Returns the request that asks for it.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => method::TOOLS_LIST,
            Self::Prompts => method::PROMPTS_LIST,
            Self::Resources => method::RESOURCES_LIST,
            Self::Templates => method::RESOURCES_TEMPLATES_LIST,
        }
    }

    /// Returns the member of the result that holds it.
    #[must_use]
    pub const fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// Returns the member of a definition by which it is asked for.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// Returns the capability of a server that has it.
    #[must_use]
    pub const fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }

    /// Returns what pins call its entries.
    #[must_use]
    pub const fn pinned(self) -> PinKind {
        match self {
            Self::Tools => PinKind::Tool,
            Self::Prompts => PinKind::Prompt,
            Self::Resources => PinKind::Resource,
            Self::Templates => PinKind::Template,
        }
    }

    /// Returns what policy calls its entries.
    #[must_use]
    pub const fn subject(self) -> Kind {
        match self {
            Self::Tools => Kind::Tool,
            Self::Prompts => Kind::Prompt,
            Self::Resources | Self::Templates => Kind::Resource,
        }
    }
}

/// One value for each list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerList<T> {
    /// Of the tools.
    pub tools: T,
    /// Of the prompts.
    pub prompts: T,
    /// Of the resources.
    pub resources: T,
    /// Of the templates.
    pub templates: T,
}

impl<T> PerList<T> {
    /// Makes the value of each list.
    pub fn from(mut make: impl FnMut(ListKind) -> T) -> Self {
        Self {
            tools: make(ListKind::Tools),
            prompts: make(ListKind::Prompts),
            resources: make(ListKind::Resources),
            templates: make(ListKind::Templates),
        }
    }

    /// Returns the value of one list.
    pub const fn get(&self, kind: ListKind) -> &T {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::Templates => &self.templates,
        }
    }

    /// Returns the value of one list, to change it.
    pub const fn get_mut(&mut self, kind: ListKind) -> &mut T {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::Templates => &mut self.templates,
        }
    }
}
