//! The names and numbers of the Model Context Protocol that the gateway acts on.

use std::fmt;

use bowline_core::era::Era;

/// A revision of the protocol, in order of their age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// HTTP with a separate event stream.
    V2024_11_05,
    /// Streamable HTTP, batches.
    V2025_03_26,
    /// No batches, structured content, the version header.
    V2025_06_18,
    /// Tasks, elicitation by URL, event streams that the server may close.
    V2025_11_25,
    /// No handshake and no sessions; questions as results.
    V2026_07_28,
}

impl Revision {
    /// The latest revision that opens with `initialize`.
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;

    /// The latest revision.
    pub const LATEST: Self = Self::V2026_07_28;

    /// Every revision, the oldest first.
    pub const ALL: [Self; 5] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
        Self::V2026_07_28,
    ];

    /// Returns the era it belongs to.
    #[must_use]
    pub const fn era(self) -> Era {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => {
                Era::Legacy
            }
            Self::V2026_07_28 => Era::Modern,
        }
    }

    /// The revision of that name, if it opens with a handshake.
    #[must_use]
    pub fn parse_legacy(name: &str) -> Option<Self> {
        Self::parse(name).filter(|known| known.era() == Era::Legacy)
    }

    /// The revision of that name; nothing when we do not know it.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Its name on the wire.
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

/// Names of requests and notifications.
pub mod method {
    /// Opens a session.
    pub const INITIALIZE: &str = "initialize";
    /// The client is ready.
    pub const INITIALIZED: &str = "notifications/initialized";
    /// Asks whether the other side is there.
    pub const PING: &str = "ping";
    /// Asks what a modern server offers.
    pub const DISCOVER: &str = "server/discover";
    /// Opens a stream of changes of a modern server.
    pub const SUBSCRIPTIONS_LISTEN: &str = "subscriptions/listen";
    /// Says what a stream of changes carries.
    pub const SUBSCRIPTIONS_ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

    /// Lists the tools.
    pub const TOOLS_LIST: &str = "tools/list";
    /// Calls a tool.
    pub const TOOLS_CALL: &str = "tools/call";
    /// The list of tools changed.
    pub const TOOLS_LIST_CHANGED: &str = "notifications/tools/list_changed";

    /// Lists the resources.
    pub const RESOURCES_LIST: &str = "resources/list";
    /// Lists the templates of resources.
    pub const RESOURCES_TEMPLATES_LIST: &str = "resources/templates/list";
    /// Reads a resource.
    pub const RESOURCES_READ: &str = "resources/read";
    /// Asks for news of a resource.
    pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
    /// Ends the news of a resource.
    pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
    /// The list of resources changed.
    pub const RESOURCES_LIST_CHANGED: &str = "notifications/resources/list_changed";
    /// A resource changed.
    pub const RESOURCES_UPDATED: &str = "notifications/resources/updated";

    /// Lists the prompts.
    pub const PROMPTS_LIST: &str = "prompts/list";
    /// Fills in a prompt.
    pub const PROMPTS_GET: &str = "prompts/get";
    /// The list of prompts changed.
    pub const PROMPTS_LIST_CHANGED: &str = "notifications/prompts/list_changed";

    /// Completes an argument.
    pub const COMPLETION_COMPLETE: &str = "completion/complete";
    /// Sets from which level the server logs.
    pub const LOGGING_SET_LEVEL: &str = "logging/setLevel";
    /// A log message.
    pub const MESSAGE: &str = "notifications/message";
    /// A request goes on.
    pub const PROGRESS: &str = "notifications/progress";
    /// A request is no longer wanted.
    pub const CANCELLED: &str = "notifications/cancelled";

    /// The server asks the client's model.
    pub const SAMPLING_CREATE_MESSAGE: &str = "sampling/createMessage";
    /// The server asks the user.
    pub const ELICITATION_CREATE: &str = "elicitation/create";
    /// What the user was asked at an address is done.
    pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
    /// The server asks for the client's folders.
    pub const ROOTS_LIST: &str = "roots/list";
    /// The client's folders changed.
    pub const ROOTS_LIST_CHANGED: &str = "notifications/roots/list_changed";

    /// Asks how a task stands.
    pub const TASKS_GET: &str = "tasks/get";
    /// Waits for the result of a task.
    pub const TASKS_RESULT: &str = "tasks/result";
    /// Lists the tasks.
    pub const TASKS_LIST: &str = "tasks/list";
    /// Answers what a task asks (modern).
    pub const TASKS_UPDATE: &str = "tasks/update";
    /// A task changed (modern).
    pub const TASKS_NOTIFICATION: &str = "notifications/tasks";
    /// Cancels a task.
    pub const TASKS_CANCEL: &str = "tasks/cancel";
    /// A task changed.
    pub const TASKS_STATUS: &str = "notifications/tasks/status";
}

/// Keys of `_meta` that the modern era reserves.
pub mod meta {
    /// The revision that a request is written in.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// What the client can do, as far as this request is concerned.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// Who the client says that it is.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// From which level on this request wants to hear log messages.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// Who the server says that it is.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// The id of the request that opened the stream of changes.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// The extension of tasks, in `capabilities.extensions`.
    pub const TASKS: &str = "io.modelcontextprotocol/tasks";
}

/// Codes of JSON-RPC errors.
pub mod code {
    /// The message is not JSON.
    pub const PARSE: i64 = -32700;
    /// The message is JSON, but not a request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// Nobody knows the method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters do not fit the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// It went wrong on our side.
    pub const INTERNAL: i64 = -32603;
    /// There is no such resource (legacy; modern servers say `INVALID_PARAMS`).
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// The user must open an address first (legacy; modern servers ask in the result).
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
    /// A header does not say what the body says (modern).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The client did not declare what the request needs (modern).
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// The revision is not spoken here (modern).
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

#[cfg(test)]
mod tests {
    use bowline_core::era::Era;

    use super::Revision;

    #[test]
    fn every_revision_reads_back_from_its_name() {
        for revision in Revision::ALL {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
            assert_eq!(revision.to_string(), revision.as_str());
        }
    }

    #[test]
    fn an_unknown_revision_is_nothing() {
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
