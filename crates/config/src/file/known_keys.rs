//! The known keys of each table: implemented and planned ones.

use super::tree_reader::TableKeys;
use crate::client_programs::ClientProgram;

pub(super) const TOP: TableKeys = TableKeys {
    // Servers come last: in a JSON file they are elsewhere, and the rest is under `x-bowline`.
    implemented: &[
        "gateway",
        "limits",
        "telemetry",
        "cache",
        "journal",
        "broker",
        "secrets",
        "secret_store",
        "audit",
        "policy",
        "roles",
        "principals",
        "tokens",
        "context",
        "profiles",
        "clients",
        "executors",
        "executor",
        "servers",
    ],
    planned: &[],
};
pub(super) const GATEWAY: TableKeys = TableKeys {
    implemented: &["listen", "names", "expose", "favourites"],
    planned: &[],
};
pub(super) const LIMITS: TableKeys = TableKeys {
    implemented: &[
        "principal_calls",
        "starts",
        "first_list_wait",
        "stop_wait",
        "sessions",
        "principal_sessions",
        "streams",
        "principal_streams",
        "subscriptions",
        "principal_subscriptions",
        "body_bytes",
        "principal_body_bytes",
        "response_bytes",
        "principal_response_bytes",
        "delivery_bytes",
        "principal_delivery_bytes",
        "journal_bytes",
        "principal_journal_bytes",
        "connections",
        "principal_connections",
        "principal_requests_per_s",
        "principal_requests_burst",
        "principal_bytes_per_s",
        "principal_bytes_burst",
        "unproven_connections",
        "address_connections",
    ],
    planned: &[],
};
pub(super) const TELEMETRY: TableKeys = TableKeys {
    implemented: &["otlp", "service_name", "sample"],
    planned: &[],
};
pub(super) const CACHE: TableKeys = TableKeys {
    implemented: &["entries", "bytes", "per_tool", "ttl_max"],
    planned: &[],
};
pub(super) const JOURNAL: TableKeys = TableKeys {
    implemented: &["engine"],
    planned: &[],
};
pub(super) const TOKENS: TableKeys = TableKeys {
    implemented: &["lifetime"],
    planned: &[],
};
pub(super) const BROKER: TableKeys = TableKeys {
    implemented: &[
        "peers",
        "mailboxes",
        "deliver_rate",
        "deliver_burst",
        "requests",
        "attempts",
        "ttl",
        "aliases",
    ],
    planned: &[],
};
pub(super) const SECRET: TableKeys = TableKeys {
    implemented: &["env", "file", "command", "every"],
    planned: &[],
};
pub(super) const SECRET_STORE: TableKeys = TableKeys {
    implemented: &["kind"],
    planned: &[],
};
pub(super) const AUDIT: TableKeys = TableKeys {
    implemented: &[
        "calls",
        "payload",
        "max_bytes",
        "keep",
        "denials_max_bytes",
        "min_age",
        "max_age",
        "export",
    ],
    planned: &[],
};
pub(super) const POLICY: TableKeys = TableKeys {
    implemented: &["default", "allowlist"],
    planned: &[],
};
pub(super) const ROLE: TableKeys = TableKeys {
    implemented: &["allow", "deny", "when", "budget", "rate"],
    planned: &[],
};
pub(super) const WHEN: TableKeys = TableKeys {
    implemented: &["on", "if"],
    planned: &[],
};
pub(super) const BUDGET: TableKeys = TableKeys {
    implemented: &["calls", "per"],
    planned: &[],
};
pub(super) const RATE: TableKeys = TableKeys {
    implemented: &["calls", "per", "burst"],
    planned: &[],
};
pub(super) const PRINCIPAL: TableKeys = TableKeys {
    implemented: &["role", "broker", "to", "kinds", "offers", "executors"],
    planned: &[],
};
pub(super) const CONTEXT: TableKeys = TableKeys {
    implemented: &["hide"],
    planned: &[],
};
pub(super) const PROFILE: TableKeys = TableKeys {
    implemented: &["allow", "deny"],
    planned: &[],
};
pub(super) const CLIENTS: TableKeys = TableKeys {
    implemented: &ClientProgram::NAMES,
    planned: &[],
};
pub(super) const CLIENT: TableKeys = TableKeys {
    implemented: &["enabled", "direct", "direct_token", "keep_env"],
    planned: &[],
};
pub(super) const SERVER: TableKeys = TableKeys {
    implemented: &[
        "command",
        "args",
        "env",
        "cwd",
        "inherit_env",
        "url",
        "headers",
        "transport",
        "via",
        "server",
        "timeout",
        "start_timeout",
        "install_timeout",
        "drain_timeout",
        "lazy",
        "idle_stop",
        "ping",
        "relist",
        "era",
        "isolation",
        "max_calls",
        "queue",
        "max_list",
        "max_result",
        "limits",
        "sandbox",
        "fs",
        "net",
        "restart",
        "breaker",
        "pin",
        "cache",
        "check_output",
        "redact_results",
        "argv_secrets",
        "tools",
    ],
    planned: &["journal"],
};
pub(super) const EXECUTORS: TableKeys = TableKeys {
    implemented: &["url", "protocol", "token"],
    planned: &[],
};
pub(super) const EXECUTOR: TableKeys = TableKeys {
    implemented: &["allow", "servers", "secrets"],
    planned: &[],
};
pub(super) const EXECUTOR_SERVER: TableKeys = TableKeys {
    implemented: &["allow"],
    planned: &[],
};
pub(super) const EXECUTOR_SECRET: TableKeys = TableKeys {
    implemented: &["value", "to"],
    planned: &[],
};
pub(super) const CHILD_LIMITS: TableKeys = TableKeys {
    implemented: &["memory", "processes", "file", "open_files"],
    planned: &[],
};
pub(super) const RESTART: TableKeys = TableKeys {
    implemented: &["budget", "window", "backoff"],
    planned: &[],
};
pub(super) const BREAKER: TableKeys = TableKeys {
    implemented: &["failures", "rest"],
    planned: &[],
};
pub(super) const TOOL: TableKeys = TableKeys {
    implemented: &[
        "effect",
        "idempotent",
        "timeout",
        "invalidates",
        "queue",
        "idempotency",
    ],
    planned: &[],
};

pub(super) const JSON_TOP: TableKeys = TableKeys {
    implemented: &["mcpServers", "$schema", "x-bowline"],
    planned: &[],
};
pub(super) const JSON_EXTRA_TOP: TableKeys = TableKeys {
    implemented: match TOP.implemented.split_last() {
        Some((_servers, rest)) => rest,
        None => &[],
    },
    planned: TOP.planned,
};
pub(super) const JSON_SERVER: TableKeys = TableKeys {
    implemented: &[
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "headers",
        "type",
        "x-bowline",
    ],
    planned: &["disabled"],
};
/// Bowline keys of a foreign server entry: all except the keys of the entry.
pub(super) const JSON_EXTRA: TableKeys = TableKeys {
    implemented: &[
        "inherit_env",
        "via",
        "server",
        "timeout",
        "start_timeout",
        "install_timeout",
        "drain_timeout",
        "lazy",
        "idle_stop",
        "ping",
        "relist",
        "era",
        "isolation",
        "max_calls",
        "queue",
        "max_list",
        "max_result",
        "limits",
        "sandbox",
        "fs",
        "net",
        "restart",
        "breaker",
        "pin",
        "cache",
        "check_output",
        "redact_results",
        "argv_secrets",
        "tools",
    ],
    planned: SERVER.planned,
};
