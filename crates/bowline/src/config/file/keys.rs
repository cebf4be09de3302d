//! The keys of each table: those that work, and those that are promised.

use super::reader::Keys;
use crate::clients::Client;

pub(super) const TOP: Keys = Keys {
    // Servers last: in a JSON file they stand elsewhere, and the rest stays under `x-bowline`.
    built: &[
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
pub(super) const GATEWAY: Keys = Keys {
    built: &["listen", "names", "expose", "favourites"],
    planned: &[],
};
pub(super) const LIMITS: Keys = Keys {
    built: &[
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
pub(super) const TELEMETRY: Keys = Keys {
    built: &["otlp", "service_name", "sample"],
    planned: &[],
};
pub(super) const CACHE: Keys = Keys {
    built: &["entries", "bytes", "per_tool", "ttl_max"],
    planned: &[],
};
pub(super) const JOURNAL: Keys = Keys {
    built: &["engine"],
    planned: &[],
};
pub(super) const TOKENS: Keys = Keys {
    built: &["lifetime"],
    planned: &[],
};
pub(super) const BROKER: Keys = Keys {
    built: &[
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
pub(super) const SECRET: Keys = Keys {
    built: &["env", "file", "command", "every"],
    planned: &[],
};
pub(super) const SECRET_STORE: Keys = Keys {
    built: &["kind"],
    planned: &[],
};
pub(super) const AUDIT: Keys = Keys {
    built: &[
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
pub(super) const POLICY: Keys = Keys {
    built: &["default", "allowlist"],
    planned: &[],
};
pub(super) const ROLE: Keys = Keys {
    built: &["allow", "deny", "when", "budget", "rate"],
    planned: &[],
};
pub(super) const WHEN: Keys = Keys {
    built: &["on", "if"],
    planned: &[],
};
pub(super) const BUDGET: Keys = Keys {
    built: &["calls", "per"],
    planned: &[],
};
pub(super) const RATE: Keys = Keys {
    built: &["calls", "per", "burst"],
    planned: &[],
};
pub(super) const PRINCIPAL: Keys = Keys {
    built: &["role", "broker", "to", "kinds", "offers", "executors"],
    planned: &[],
};
pub(super) const CONTEXT: Keys = Keys {
    built: &["hide"],
    planned: &[],
};
pub(super) const PROFILE: Keys = Keys {
    built: &["allow", "deny"],
    planned: &[],
};
pub(super) const CLIENTS: Keys = Keys {
    built: &Client::NAMES,
    planned: &[],
};
pub(super) const CLIENT: Keys = Keys {
    built: &["enabled", "direct", "direct_token", "keep_env"],
    planned: &[],
};
pub(super) const SERVER: Keys = Keys {
    built: &[
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
pub(super) const EXECUTORS: Keys = Keys {
    built: &["url", "protocol", "token"],
    planned: &[],
};
pub(super) const EXECUTOR: Keys = Keys {
    built: &["allow", "servers", "secrets"],
    planned: &[],
};
pub(super) const EXECUTOR_SERVER: Keys = Keys {
    built: &["allow"],
    planned: &[],
};
pub(super) const EXECUTOR_SECRET: Keys = Keys {
    built: &["value", "to"],
    planned: &[],
};
pub(super) const CHILD_LIMITS: Keys = Keys {
    built: &["memory", "processes", "file", "open_files"],
    planned: &[],
};
pub(super) const RESTART: Keys = Keys {
    built: &["budget", "window", "backoff"],
    planned: &[],
};
pub(super) const BREAKER: Keys = Keys {
    built: &["failures", "rest"],
    planned: &[],
};
pub(super) const TOOL: Keys = Keys {
    built: &[
        "effect",
        "idempotent",
        "timeout",
        "invalidates",
        "queue",
        "idempotency",
    ],
    planned: &[],
};

pub(super) const JSON_TOP: Keys = Keys {
    built: &["mcpServers", "$schema", "x-bowline"],
    planned: &[],
};
pub(super) const JSON_EXTRA_TOP: Keys = Keys {
    built: match TOP.built.split_last() {
        Some((_servers, rest)) => rest,
        None => &[],
    },
    planned: TOP.planned,
};
pub(super) const JSON_SERVER: Keys = Keys {
    built: &[
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
/// Our own keys beside a foreign entry: all but those that the entry itself has.
pub(super) const JSON_EXTRA: Keys = Keys {
    built: &[
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
