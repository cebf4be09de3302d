//! What the gateway's API answers, as far as commands look at it.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use crate::config::suggest::nearest;

/// `GET /api/v1/servers`.
#[derive(Debug, Deserialize)]
pub(crate) struct Servers {
    pub(crate) servers: Vec<Server>,
    #[serde(default)]
    pub(crate) broken: Vec<Broken>,
}

/// A server that is configured but cannot be started.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Broken {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// `GET /api/v1/servers/{name}`, and what orders to a server are answered with.
#[derive(Debug, Deserialize)]
pub(crate) struct OneServer {
    pub(crate) server: Server,
}

/// A list of which entries are left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LeftOut {
    pub(crate) list: String,
    pub(crate) entries: u64,
    pub(crate) more: bool,
}

/// One server as the gateway sees it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Server {
    pub(crate) argv_secrets: bool,
    pub(crate) redact_results: Option<bool>,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) lazy: bool,
    pub(crate) era: String,
    pub(crate) command: String,
    pub(crate) generation: u64,
    pub(crate) pid: Option<u32>,
    pub(crate) uptime_ms: Option<u64>,
    pub(crate) processes: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) tools: u64,
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) manifest: String,
    pub(crate) stale: bool,
    pub(crate) pin: String,
    pub(crate) pins_changed: u64,
    pub(crate) pins_quarantined: u64,
    pub(crate) pins_error: Option<String>,
    pub(crate) ref_count: u64,
    pub(crate) in_flight: u64,
    pub(crate) queued: u64,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) sheds: u64,
    pub(crate) error_rate: f64,
    pub(crate) p50_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
    pub(crate) restart_count: u64,
    pub(crate) consecutive_failures: u64,
    pub(crate) own_links: u64,
    pub(crate) isolated_because: Option<String>,
    pub(crate) circuit: String,
    pub(crate) ejected: bool,
    pub(crate) cache_entries: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) cache_evictions: u64,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) last_error: Option<LastError>,
    pub(crate) limits: Limits,
    pub(crate) sandbox: Option<Sandbox>,
}

/// What a server may reach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sandbox {
    pub(crate) level: String,
    pub(crate) lacks: Option<String>,
}

impl Server {
    /// Says what is left out of its lists, where anything is.
    pub(crate) fn left_out(&self) -> Option<String> {
        let lists = self.left_out.iter().map(|left_out| {
            let LeftOut {
                list,
                entries,
                more,
            } = left_out;
            let at_least = if *more { "at least " } else { "" };
            format!("{at_least}{entries} {list} left out")
        });
        let lists: Vec<_> = lists.collect();
        (!lists.is_empty()).then(|| format!("{}; see max_list", lists.join(", ")))
    }

    /// What the kernel does not have of its sandbox.
    pub(crate) fn sandbox_lacks(&self) -> Option<&str> {
        self.sandbox.as_ref()?.lacks.as_deref()
    }

    /// Whether a person should look at it: it failed, and is not well again yet.
    pub(crate) fn is_failing(&self) -> bool {
        self.ejected
            || self.state == "backoff"
            || matches!(self.circuit.as_str(), "open" | "half_open")
    }
}

/// What a server is held to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) calls_max: u64,
    pub(crate) queue_max: u64,
    pub(crate) call_timeout_ms: u64,
    pub(crate) start_timeout_ms: u64,
    pub(crate) restarts_max: u64,
    pub(crate) restart_window_ms: u64,
    pub(crate) memory_bytes_max: Option<u64>,
    pub(crate) processes_max: Option<u64>,
    pub(crate) file_bytes_max: Option<u64>,
    pub(crate) open_files_max: Option<u64>,
}

/// Why a server last failed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LastError {
    pub(crate) code: Option<String>,
    pub(crate) class: String,
    pub(crate) message: String,
    pub(crate) age_ms: u64,
}

/// `GET /api/v1/tools`.
#[derive(Debug, Deserialize)]
pub(crate) struct Tools<'a> {
    #[serde(borrow)]
    pub(crate) tools: Vec<Tool<'a>>,
    #[serde(default)]
    pub(crate) unlisted: Vec<Unlisted>,
}

/// One tool.
#[derive(Debug, Deserialize)]
pub(crate) struct Tool<'a> {
    pub(crate) server: String,
    pub(crate) tool: String,
    #[serde(default)]
    pub(crate) effect: String,
    #[serde(default)]
    pub(crate) stale: bool,
    #[serde(borrow)]
    pub(crate) definition: &'a RawValue,
}

/// A server whose tools are not known.
#[derive(Debug, Deserialize)]
pub(crate) struct Unlisted {
    pub(crate) server: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) message: Option<String>,
}

/// The part of a tool's definition that people read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Definition<'a> {
    pub(crate) description: Option<String>,
    #[serde(borrow, rename = "inputSchema")]
    pub(crate) input_schema: Option<&'a RawValue>,
    #[serde(borrow, rename = "outputSchema")]
    pub(crate) output_schema: Option<&'a RawValue>,
}

impl<'a> Tool<'a> {
    /// The definition, or an empty one when it cannot be read.
    pub(crate) fn definition(&self) -> Definition<'a> {
        serde_json::from_str(self.definition.get()).unwrap_or_default()
    }
}

/// Reads an answer, or says that the gateway does not keep to the contract.
pub(crate) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the gateway's answer cannot be read: {error}");
        Failure::new(Exit::Unexpected, "bad_answer", message)
    })
}

/// All servers.
pub(crate) fn servers(client: &Client) -> Result<Vec<Server>, Failure> {
    let body = client.get("/api/v1/servers", QUICK)?;
    Ok(read::<Servers>(&body)?.servers)
}

/// The tools of one server, as they came.
pub(crate) fn tools(client: &Client, server: &str) -> Result<Bytes, Failure> {
    client.get(&format!("/api/v1/tools?server={}", encode(server)), QUICK)
}

/// A server that is not there, with the name that may have been meant.
pub(crate) fn no_server(name: &str, servers: &[Server]) -> Failure {
    no_server_among(name, servers.iter().map(|server| server.name.as_str()))
}

/// The same, where only the names of servers are known.
pub(crate) fn no_server_among<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Failure {
    let failure = Failure::new(
        Exit::Usage,
        "server_not_found",
        format!("no server \"{name}\""),
    );
    suggest(failure, nearest(name, known))
}

/// A tool that is not there, with the name that may have been meant.
pub(crate) fn no_tool(server: &str, tool: &str, tools: &[Tool<'_>]) -> Failure {
    let message = format!("server `{server}` has no tool \"{tool}\"");
    let failure = Failure::new(Exit::Usage, "tool_not_found", message);
    suggest(
        failure,
        nearest(tool, tools.iter().map(|tool| tool.tool.as_str())),
    )
}

fn suggest(mut failure: Failure, near: Option<&str>) -> Failure {
    if let Some(near) = near {
        failure
            .details
            .insert("suggestions".into(), vec![near].into());
    }
    failure
}

/// Puts suggestions into words, unless someone did already.
pub(crate) fn did_you_mean(mut failure: Failure) -> Failure {
    if let Some(meant) = suggestions(&failure).first() {
        failure.hints.insert(0, format!("did you mean {meant}?"));
    }
    failure
}

/// The names that the gateway, or we, found near.
pub(crate) fn suggestions(failure: &Failure) -> Vec<String> {
    let list = failure
        .details
        .get("suggestions")
        .and_then(|list| list.as_array());
    list.into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}
