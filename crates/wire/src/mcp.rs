//! Names and numbers of the Model Context Protocol used by the gateway.

use std::fmt;

use bowline_core::era::Era;

/// A protocol revision, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// HTTP with a separate event stream.
    V2024_11_05,
    /// Streamable HTTP, batches.
    V2025_03_26,
    /// No batches, structured content, the version header.
    V2025_06_18,
    /// Tasks, URL elicitation, event streams closable by the server.
    V2025_11_25,
    /// No handshake and no sessions; input requests as results.
    V2026_07_28,
}

impl Revision {
    /// The latest revision with an `initialize` handshake.
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;

    /// The latest revision.
    pub const LATEST: Self = Self::V2026_07_28;

    /// Every revision, oldest first.
    pub const ALL: [Self; 5] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
        Self::V2026_07_28,
    ];

    /// Returns the era.
    #[must_use]
    pub const fn era(self) -> Era {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => {
                Era::Legacy
            }
            Self::V2026_07_28 => Era::Modern,
        }
    }

    /// Parses a revision with a handshake.
    #[must_use]
    pub fn parse_legacy(name: &str) -> Option<Self> {
        Self::parse(name).filter(|known| known.era() == Era::Legacy)
    }

    /// Parses a revision; `None` if unknown.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Returns the wire name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Method names of requests and notifications.
pub mod method {
    /// Opens a session.
    pub const INITIALIZE: &str = "initialize";
    /// The client is ready.
    pub const INITIALIZED: &str = "notifications/initialized";
    /// Checks liveness.
    pub const PING: &str = "ping";
    /// Returns the features of a modern server.
    pub const DISCOVER: &str = "server/discover";
    /// Opens a change stream of a modern server.
    pub const SUBSCRIPTIONS_LISTEN: &str = "subscriptions/listen";
    /// Acknowledges the content of a change stream.
    pub const SUBSCRIPTIONS_ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

    /// Lists the tools.
    pub const TOOLS_LIST: &str = "tools/list";
    /// Calls a tool.
    pub const TOOLS_CALL: &str = "tools/call";
    /// The list of tools changed.
    pub const TOOLS_LIST_CHANGED: &str = "notifications/tools/list_changed";

    /// Lists the resources.
    pub const RESOURCES_LIST: &str = "resources/list";
    /// Lists the resource templates.
    pub const RESOURCES_TEMPLATES_LIST: &str = "resources/templates/list";
    /// Reads a resource.
    pub const RESOURCES_READ: &str = "resources/read";
    /// Subscribes to a resource.
    pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
    /// Unsubscribes from a resource.
    pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
    /// The list of resources changed.
    pub const RESOURCES_LIST_CHANGED: &str = "notifications/resources/list_changed";
    /// A resource changed.
    pub const RESOURCES_UPDATED: &str = "notifications/resources/updated";

    /// Lists the prompts.
    pub const PROMPTS_LIST: &str = "prompts/list";
    /// Gets a prompt.
    pub const PROMPTS_GET: &str = "prompts/get";
    /// The list of prompts changed.
    pub const PROMPTS_LIST_CHANGED: &str = "notifications/prompts/list_changed";

    /// Completes an argument.
    pub const COMPLETION_COMPLETE: &str = "completion/complete";
    /// Sets the minimum log level.
    pub const LOGGING_SET_LEVEL: &str = "logging/setLevel";
    /// A log message.
    pub const MESSAGE: &str = "notifications/message";
    /// Progress of a request.
    pub const PROGRESS: &str = "notifications/progress";
    /// Cancels a request.
    pub const CANCELLED: &str = "notifications/cancelled";

    /// The server requests sampling by the client's model.
    pub const SAMPLING_CREATE_MESSAGE: &str = "sampling/createMessage";
    /// The server requests input from the user.
    pub const ELICITATION_CREATE: &str = "elicitation/create";
    /// A URL elicitation is complete.
    pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
    /// The server requests the client's roots.
    pub const ROOTS_LIST: &str = "roots/list";
    /// The client's roots changed.
    pub const ROOTS_LIST_CHANGED: &str = "notifications/roots/list_changed";

    /// Returns the status of a task.
    pub const TASKS_GET: &str = "tasks/get";
    /// Waits for the result of a task.
    pub const TASKS_RESULT: &str = "tasks/result";
    /// Lists the tasks.
    pub const TASKS_LIST: &str = "tasks/list";
    /// Sends responses to a task's input requests (modern).
    pub const TASKS_UPDATE: &str = "tasks/update";
    /// A task changed (modern).
    pub const TASKS_NOTIFICATION: &str = "notifications/tasks";
    /// Cancels a task.
    pub const TASKS_CANCEL: &str = "tasks/cancel";
    /// A task changed.
    pub const TASKS_STATUS: &str = "notifications/tasks/status";
}

/// `_meta` keys reserved by the modern era.
pub mod meta {
    /// The revision of a request.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// The client capabilities for this request.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// The client info.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// The minimum log level for this request.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// The server info.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// The id of the request that opened the change stream.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// The tasks extension, in `capabilities.extensions`.
    pub const TASKS: &str = "io.modelcontextprotocol/tasks";
}

/// JSON-RPC error codes.
pub mod code {
    /// Invalid JSON.
    pub const PARSE: i64 = -32700;
    /// Valid JSON, but no request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// Unknown method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Invalid parameters.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Internal error.
    pub const INTERNAL: i64 = -32603;
    /// Unknown resource (legacy; modern servers use `INVALID_PARAMS`).
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// The user must open a URL first (legacy; modern servers use an input request).
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
    /// A header contradicts the body (modern).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// A required client capability is missing (modern).
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// Unsupported revision (modern).
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

#[cfg(test)]
mod tests {
    use bowline_core::era::Era;

    use super::Revision;

    #[test]
    fn revision_names_round_trip() {
        for revision in Revision::ALL {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
            assert_eq!(revision.to_string(), revision.as_str());
        }
    }

    #[test]
    fn unknown_revision_is_not_parsed() {
        for name in ["", "2025-11-26", "2025-11-25 ", "2026-07-29", "1.0"] {
            assert_eq!(Revision::parse(name), None, "{name}");
        }
    }

    #[test]
    fn revisions_are_ordered_by_age() {
        assert!(Revision::ALL.is_sorted());
        assert!(Revision::ALL.is_sorted_by_key(|revision| revision.as_str()));
        assert_eq!(Revision::ALL.last(), Some(&Revision::LATEST));
        let mut legacy = Revision::ALL.into_iter().rev();
        let legacy = legacy.find(|revision| revision.era() == Era::Legacy);
        assert_eq!(legacy, Some(Revision::LATEST_LEGACY));
        assert_eq!(Revision::parse_legacy("2026-07-28"), None);
    }
}
