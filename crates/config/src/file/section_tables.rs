//! The tables of a whole file, and of its small sections.

use super::config_table::config_table;
use super::server_keys::ServerKey;

config_table! {
    /// The whole file.
    pub(super) enum TopKey {
        /// Where the gateway listens, and how it shows tools.
        Gateway = "gateway" takes "a table",
        /// Limits of the gateway and of each principal.
        Limits = "limits" takes "a table",
        /// Traces.
        Telemetry = "telemetry" takes "a table",
        /// The cache of responses.
        Cache = "cache" takes "a table",
        /// Durable state.
        Journal = "journal" takes "a table",
        /// The hub of peers.
        Broker = "broker" takes "a table",
        /// Secrets from variables, files and programs.
        Secrets = "secrets" takes "tables by name",
        /// Where `bowline secret` keeps secrets.
        SecretStore = "secret_store" takes "a table",
        /// The audit trail.
        Audit = "audit" takes "a table",
        /// What applies without a rule.
        Policy = "policy" takes "a table",
        /// Rights of principals.
        Roles = "roles" takes "tables by name",
        /// Roles and peer rights by principal.
        Principals = "principals" takes "tables by name",
        /// Tokens that the gateway issues.
        Tokens = "tokens" takes "a table",
        /// Tools that a context hides.
        Context = "context" takes "tables by name",
        /// Selections of tools with an endpoint.
        Profiles = "profiles" takes "tables by name",
        /// Programs that `bowline run` starts.
        Clients = "clients" takes "tables by name",
        /// Executors that the gateway dials.
        Executors = "executors" takes "tables by name",
        /// This machine as an executor.
        Executor = "executor" takes "a table",
        /// MCP servers.
        Servers = "servers" takes "tables by name",
    }
}

config_table! {
    /// `[gateway]`: where the gateway listens, and how it shows tools.
    pub(super) enum GatewayKey {
        /// Addresses to listen on.
        Listen = "listen" takes "an address with a port, or a list",
        /// Host names under which clients reach the gateway.
        Names = "names" takes "a host name, or a list",
        /// Whether tools are listed, or found by search.
        Expose = "expose" takes "a choice",
        /// Tools that are listed although the rest is found by search.
        Favourites = "favourites" takes "a list of patterns",
    }
}

config_table! {
    /// `[telemetry]`: traces.
    pub(super) enum TelemetryKey {
        /// Address of an OTLP collector.
        Otlp = "otlp" takes "an address",
        /// Name of the service in traces.
        ServiceName = "service_name" takes "a text",
        /// Share of calls that are traced.
        Sample = "sample" takes "a number from 0.0 to 1.0",
    }
}

config_table! {
    /// `[cache]`: the cache of responses.
    pub(super) enum CacheKey {
        /// Cached responses.
        Entries = "entries" takes "a whole number",
        /// Bytes of cached responses.
        Bytes = "bytes" takes "a size",
        /// Cached responses of a tool.
        PerTool = "per_tool" takes "a whole number",
        /// Maximum lifetime of a response.
        TtlMax = "ttl_max" takes "a duration",
    }
}

config_table! {
    /// `[journal]`: durable state.
    pub(super) enum JournalKey {
        /// Where the journal is kept: on the disk or in memory.
        Engine = "engine" takes "a choice",
    }
}

config_table! {
    /// `[audit]`: the audit trail.
    pub(super) enum AuditKey {
        /// Whether calls are recorded.
        Calls = "calls" takes "true or false",
        /// Whether arguments and results are recorded.
        Payload = "payload" takes "true or false",
        /// Size of a file of calls.
        MaxBytes = "max_bytes" takes "a size",
        /// Files of calls that are kept.
        Keep = "keep" takes "a whole number",
        /// Size of a file of denials.
        DenialsMaxBytes = "denials_max_bytes" takes "a size",
        /// Age below which calls are kept, within four times `keep`.
        MinAge = "min_age" takes "a duration",
        /// Age above which rows are deleted.
        MaxAge = "max_age" takes "a duration",
        /// Receiver of all rows: syslog or OTLP.
        Export = "export" takes "an address",
    }
}

config_table! {
    /// A JSON file of another program.
    pub(super) enum JsonTopKey {
        /// MCP servers.
        McpServers = "mcpServers" takes "tables by name",
        /// Ignored.
        Schema = "$schema" takes "a text",
        /// All tables of `bowline.toml` except `servers`.
        Extra = "x-bowline" takes "a table",
    }
}

config_table! {
    /// `mcpServers.NAME`: a server in a JSON file.
    pub(super) enum JsonServerKey {
        /// Program of the server.
        Command = "command" takes "a text",
        /// Arguments of the program.
        Args = "args" takes "a list of texts",
        /// Variables of the program.
        Env = "env" takes "variables by name",
        /// Working directory of the program.
        Cwd = "cwd" takes "a path",
        /// Address of a server over HTTP.
        Url = "url" takes "an address",
        /// Headers of each request.
        Headers = "headers" takes "texts by name",
        /// Transport of the server.
        Type = "type" takes "a choice",
        /// All keys of `[servers.NAME]` that are not keys here.
        Extra = "x-bowline" takes "a table",
    }
    planned { "disabled" }
}

impl JsonServerKey {
    /// Returns the key of `[servers.NAME]` with the same name and meaning.
    pub(super) const fn server_key(self) -> Option<ServerKey> {
        match self {
            Self::Command => Some(ServerKey::Command),
            Self::Args => Some(ServerKey::Args),
            Self::Env => Some(ServerKey::Env),
            Self::Cwd => Some(ServerKey::Cwd),
            Self::Url => Some(ServerKey::Url),
            Self::Headers => Some(ServerKey::Headers),
            Self::Type | Self::Extra => None,
        }
    }
}
