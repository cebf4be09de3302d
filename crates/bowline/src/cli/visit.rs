//! `visit`: walks through an MCP server at an address as a client would. The conformance suite
//! looks at how servers are spoken to by having it visit servers of its own.

mod caller;
mod sample;

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Body, Call, Principal, Role, Scope, Subject};
use bowline_core::caller::{CallerEnd, Question};
use bowline_host::catalog::ListKind;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, SpawnOptions};
use bowline_wire::splice::write_string;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::caller::Answering;
use super::client::runtime;
use super::failure::{Exit, Failure};
use super::out::Format;
use super::{Context, args};

/// The name of the server here.
const SERVER: &str = "visited";
/// Longest wait for one answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Questions of the server that may wait for an answer.
const QUESTIONS_MAX: usize = 16;
/// Says which calls the conformance suite wants to see.
const WISHES: &str = "MCP_CONFORMANCE_CONTEXT";

/// Visits, and says what came of every request.
pub(super) fn run(asked: &args::Visit, context: &mut Context) -> Result<Exit, Failure> {
    let wishes = context.env.text(WISHES).unwrap_or("null");
    let wishes: Value = serde_json::from_str(wishes)
        .map_err(|error| Failure::usage(format!("{WISHES} is not JSON: {error}")))?;
    let runtime = runtime()?;
    let told = runtime.block_on(async {
        let mut visit = Visit::begin(&asked.address).await?;
        visit.walk(&wishes).await;
        visit.host.shutdown().await;
        Ok::<_, Failure>(visit.told)
    })?;
    match context.out.format() {
        Format::Json => context
            .out
            .raw(json!({"v": 1, "asked": told}).to_string().as_bytes())?,
        Format::Human => {
            for one in &told {
                context.out.line(&one.to_string())?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// One visit.
struct Visit {
    host: Host,
    owner: Arc<Principal>,
    scope: Scope,
    end: Arc<Answering>,
    questions: mpsc::Receiver<Question>,
    told: Vec<Value>,
}

impl Visit {
    async fn begin(address: &str) -> Result<Self, Failure> {
        let refused = |error: &dyn std::error::Error| Failure::unexpected(error.to_string());
        let spec = json!({"name": SERVER, "url": address});
        let spec = ServerSpec::from_json(&spec).map_err(|error| refused(&error))?;
        let host = Host::builder().build().map_err(|error| refused(&error))?;
        host.spawn(spec, SpawnOptions::default())
            .await
            .map_err(|error| refused(&error))?;
        let (sender, questions) = mpsc::channel(QUESTIONS_MAX);
        Ok(Self {
            host,
            owner: Arc::new(Principal::new("owner", Role::Owner)),
            scope: Scope::Server(SERVER.into()),
            end: Arc::new(Answering::new(sender)),
            questions,
            told: Vec::new(),
        })
    }

    /// Calls what is wished for, or all that there is.
    async fn walk(&mut self, wishes: &Value) {
        if let Some(calls) = wishes.get("toolCalls").and_then(Value::as_array) {
            for call in calls {
                self.tool(&call["name"], &call["arguments"]).await;
            }
            return;
        }
        for tool in &self.list(ListKind::Tools, "tools") {
            let arguments = sample::arguments(&tool["inputSchema"]);
            self.tool(&tool["name"], &arguments).await;
        }
        for prompt in &self.list(ListKind::Prompts, "prompts") {
            let arguments = sample::prompt(&prompt["arguments"]);
            let name = prompt["name"].as_str().unwrap_or_default();
            let subject = Subject::Prompt(name.into());
            self.ask(subject, ("name", name), Some(&arguments)).await;
        }
        for resource in &self.list(ListKind::Resources, "resources") {
            let uri = resource["uri"].as_str().unwrap_or_default();
            let subject = Subject::Resource(uri.into());
            self.ask(subject, ("uri", uri), None).await;
        }
    }

    fn list(&self, kind: ListKind, member: &str) -> Vec<Value> {
        let listing = self.host.view(&self.owner, &self.scope, kind);
        let mut list: Value = serde_json::from_slice(&listing.result).unwrap_or_default();
        match list.get_mut(member).map(Value::take) {
            Some(Value::Array(items)) => items,
            Some(_) | None => Vec::new(),
        }
    }

    async fn tool(&mut self, name: &Value, arguments: &Value) {
        let name = name.as_str().unwrap_or_default();
        let subject = Subject::Tool(name.into());
        self.ask(subject, ("name", name), Some(arguments)).await;
    }

    /// Asks for one thing, and answers what the server asks meanwhile.
    async fn ask(&mut self, subject: Subject, named: (&str, &str), arguments: Option<&Value>) {
        let method = subject.method();
        let call = self.call(subject, named, arguments);
        let mut reply = std::pin::pin!(self.host.call(call));
        let reply = loop {
            tokio::select! {
                reply = &mut reply => break reply,
                Some(question) = self.questions.recv() => caller::answer(question),
            }
        };
        let came = match reply {
            Ok(reply) => {
                let text = reply.answer.get(reply.body_at).unwrap_or_default();
                let key = match reply.body {
                    Body::Result => "result",
                    Body::Error => "error",
                };
                json!({key: serde_json::from_slice::<Value>(text).unwrap_or_default()})
            }
            Err(error) => json!({"failure": error.to_string()}),
        };
        self.told
            .push(json!({"method": method, "name": named.1, "came": came}));
    }

    fn call(&self, subject: Subject, named: (&str, &str), arguments: Option<&Value>) -> Call {
        let mut params = format!("{{\"{}\":", named.0).into_bytes();
        let start = params.len();
        write_string(&mut params, named.1);
        let name_at = start..params.len();
        if let Some(arguments) = arguments {
            params.extend_from_slice(b",\"arguments\":");
            params.extend_from_slice(arguments.to_string().as_bytes());
        }
        params.push(b'}');
        Call {
            principal: Arc::clone(&self.owner),
            scope: self.scope.clone(),
            subject,
            params: params.into(),
            name_at,
            makes_task: false,
            progress_at: None,
            id: Bytes::from_static(b"1"),
            deadline: Some(self.host.clock().now().plus(CALL_TIMEOUT)),
            caller: Some(Arc::clone(&self.end) as Arc<dyn CallerEnd>),
            trace: None,
            run: None,
            key: None,
            stateless: None,
        }
    }
}
