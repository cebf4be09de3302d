//! The four MCP lists and their names.

use bowline_core::call::FeatureKind;
use bowline_core::pins::PinKind;
use bowline_wire::mcp::method;

/// The MCP lists.
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

    /// Returns the list method.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => method::TOOLS_LIST,
            Self::Prompts => method::PROMPTS_LIST,
            Self::Resources => method::RESOURCES_LIST,
            Self::Templates => method::RESOURCES_TEMPLATES_LIST,
        }
    }

    /// Returns the result member with the list.
    #[must_use]
    pub const fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// Returns the identifying member of a definition.
    #[must_use]
    pub const fn id_member(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// Returns the server capability for the list.
    #[must_use]
    pub const fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }

    /// Returns the pin kind of the items.
    #[must_use]
    pub const fn pin_kind(self) -> PinKind {
        match self {
            Self::Tools => PinKind::Tool,
            Self::Prompts => PinKind::Prompt,
            Self::Resources => PinKind::Resource,
            Self::Templates => PinKind::Template,
        }
    }

    /// Returns the policy kind of the items.
    #[must_use]
    pub const fn feature_kind(self) -> FeatureKind {
        match self {
            Self::Tools => FeatureKind::Tool,
            Self::Prompts => FeatureKind::Prompt,
            Self::Resources | Self::Templates => FeatureKind::Resource,
        }
    }
}

/// A value for each list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerList<T> {
    /// For the tools.
    pub tools: T,
    /// For the prompts.
    pub prompts: T,
    /// For the resources.
    pub resources: T,
    /// For the templates.
    pub templates: T,
}

impl<T> PerList<T> {
    /// Builds the value of each list.
    pub fn from_fn(mut make: impl FnMut(ListKind) -> T) -> Self {
        Self {
            tools: make(ListKind::Tools),
            prompts: make(ListKind::Prompts),
            resources: make(ListKind::Resources),
            templates: make(ListKind::Templates),
        }
    }

    /// Returns the value of a list.
    pub const fn get(&self, kind: ListKind) -> &T {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::Templates => &self.templates,
        }
    }

    /// Returns the value of a list, mutable.
    pub const fn get_mut(&mut self, kind: ListKind) -> &mut T {
        match kind {
            ListKind::Tools => &mut self.tools,
            ListKind::Prompts => &mut self.prompts,
            ListKind::Resources => &mut self.resources,
            ListKind::Templates => &mut self.templates,
        }
    }
}
