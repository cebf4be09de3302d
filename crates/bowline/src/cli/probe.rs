//! `__visit`: exercises an MCP server at a URL like a client. The conformance suite runs the probe
//! against the suite's servers to observe the client behaviour.

mod auto_responder;
mod sample;

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{
    BodyKind, CallRequest, CallSubject, EndpointScope, Principal, RequestMessage, Role,
};
use bowline_core::client_handle::{ClientHandle, ServerRequest};
use bowline_core::era::Era;
use bowline_host::catalog::ListKind;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, SpawnOptions};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::auto_responder::AutoResponder;
use super::api_client::create_runtime;
use super::failure::{CliExit, CliFailure};
use super::output::OutputFormat;
use super::{CommandContext, args};

/// Name of the probed server.
const PROBED_SERVER: &str = "visited";
/// Timeout of a request.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum queued server requests.
const SERVER_REQUESTS_MAX: usize = 16;
/// Variable with the calls requested by the conformance suite.
const CONFORMANCE_VARIABLE: &str = "MCP_CONFORMANCE_CONTEXT";

/// Probes a server and prints the outcome of every request.
pub(super) fn run(
    args: &args::ProbeArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let requested_calls = context.env.text(CONFORMANCE_VARIABLE).unwrap_or("null");
    let requested_calls: Value = serde_json::from_str(requested_calls).map_err(|error| {
        CliFailure::usage(format!("{CONFORMANCE_VARIABLE} is not JSON: {error}"))
    })?;
    let runtime = create_runtime()?;
    let outcomes = runtime.block_on(async {
        let mut probe = ServerProbe::connect(&args.address).await?;
        probe.run_requests(&requested_calls).await;
        probe.host.shutdown().await;
        Ok::<_, CliFailure>(probe.outcomes)
    })?;
    match context.out.format() {
        OutputFormat::Json => context
            .out
            .write_raw_json(json!({"v": 1, "asked": outcomes}).to_string().as_bytes())?,
        OutputFormat::Human => {
            for outcome in &outcomes {
                context.out.write_line(&outcome.to_string())?;
            }
        }
    }
    Ok(CliExit::Ok)
}

/// A probe of a server.
struct ServerProbe {
    host: Host,
    owner: Arc<Principal>,
    scope: EndpointScope,
    client: Arc<AutoResponder>,
    server_requests: mpsc::Receiver<ServerRequest>,
    outcomes: Vec<Value>,
}

impl ServerProbe {
    async fn connect(address: &str) -> Result<Self, CliFailure> {
        let to_failure = |error: &dyn std::error::Error| CliFailure::unexpected(error.to_string());
        let spec = json!({"name": PROBED_SERVER, "url": address});
        let spec = ServerSpec::from_json(&spec).map_err(|error| to_failure(&error))?;
        let host = Host::builder()
            .build()
            .map_err(|error| to_failure(&error))?;
        host.spawn(spec, SpawnOptions::default())
            .await
            .map_err(|error| to_failure(&error))?;
        let (sender, receiver) = mpsc::channel(SERVER_REQUESTS_MAX);
        Ok(Self {
            host,
            owner: Arc::new(Principal::new("owner", Role::Owner)),
            scope: EndpointScope::Server(PROBED_SERVER.into()),
            client: Arc::new(AutoResponder::new(sender)),
            server_requests: receiver,
            outcomes: Vec::new(),
        })
    }

    /// Makes the requested calls, or all possible ones.
    async fn run_requests(&mut self, requested_calls: &Value) {
        if let Some(calls) = requested_calls.get("toolCalls").and_then(Value::as_array) {
            for call in calls {
                self.call_tool(&call["name"], &call["arguments"]).await;
            }
            return;
        }
        for tool in &self.fetch_list(ListKind::Tools, "tools") {
            let arguments = sample::sample_arguments(&tool["inputSchema"]);
            self.call_tool(&tool["name"], &arguments).await;
        }
        for prompt in &self.fetch_list(ListKind::Prompts, "prompts") {
            let arguments = sample::sample_prompt_arguments(&prompt["arguments"]);
            let name = prompt["name"].as_str().unwrap_or_default();
            let subject = CallSubject::Prompt(name.into());
            self.send_request(subject, "name", name, Some(&arguments))
                .await;
        }
        for resource in &self.fetch_list(ListKind::Resources, "resources") {
            let uri = resource["uri"].as_str().unwrap_or_default();
            let subject = CallSubject::Resource(uri.into());
            self.send_request(subject, "uri", uri, None).await;
        }
    }

    fn fetch_list(&self, kind: ListKind, member: &str) -> Vec<Value> {
        let listing = self.host.list_for(&self.owner, &self.scope, kind);
        let mut list: Value = serde_json::from_slice(&listing.result).unwrap_or_default();
        match list.get_mut(member).map(Value::take) {
            Some(Value::Array(items)) => items,
            Some(_) | None => Vec::new(),
        }
    }

    async fn call_tool(&mut self, name: &Value, arguments: &Value) {
        let name = name.as_str().unwrap_or_default();
        let subject = CallSubject::Tool(name.into());
        self.send_request(subject, "name", name, Some(arguments))
            .await;
    }

    /// Sends a request, and answers server requests meanwhile.
    async fn send_request(
        &mut self,
        subject: CallSubject,
        name_key: &str,
        name: &str,
        arguments: Option<&Value>,
    ) {
        let method = subject.method();
        let call = self.build_call(subject, name_key, name, arguments);
        let mut reply = std::pin::pin!(self.host.call(call));
        let reply = loop {
            tokio::select! {
                reply = &mut reply => break reply,
                Some(question) = self.server_requests.recv() => {
                    auto_responder::answer_request(question);
                }
            }
        };
        let outcome = match reply {
            Ok(reply) => {
                let text = reply.response.body_bytes();
                let key = match reply.response.body {
                    BodyKind::Result => "result",
                    BodyKind::Error => "error",
                };
                json!({key: serde_json::from_slice::<Value>(text).unwrap_or_default()})
            }
            Err(error) => json!({"failure": error.to_string()}),
        };
        self.outcomes
            .push(json!({"method": method, "name": name, "came": outcome}));
    }

    fn build_call(
        &self,
        subject: CallSubject,
        name_key: &str,
        name: &str,
        arguments: Option<&Value>,
    ) -> CallRequest {
        let mut params = format!("{{\"{name_key}\":").into_bytes();
        let start = params.len();
        write_string(&mut params, name);
        let name_at = start..params.len();
        if let Some(arguments) = arguments {
            params.extend_from_slice(b",\"arguments\":");
            params.extend_from_slice(arguments.to_string().as_bytes());
        }
        params.push(b'}');
        CallRequest {
            principal: Arc::clone(&self.owner),
            scope: self.scope.clone(),
            subject,
            name_at,
            wants_task: false,
            deadline: Some(self.host.clock().now().plus(CALL_TIMEOUT)),
            run: None,
            idempotency_key: None,
            stateless: None,
            message: RequestMessage {
                params: params.into(),
                progress_at: None,
                id: Bytes::from_static(b"1"),
                client: Some(Arc::clone(&self.client) as Arc<dyn ClientHandle>),
                trace: None,
                era: Era::Legacy,
            },
        }
    }
}
