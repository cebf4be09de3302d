//! Forwards the input requests of a result to a client, and collects the responses.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::client_handle::{ClientCapability, ClientHandle, ServerRequest, ServerRequestId};
use bowline_wire::era::input_required::{
    InputError, InputRequired, QUESTIONS_MAX, request_to_legacy, write_continuation,
};
use bowline_wire::jsonrpc::{write_notification, write_request};
use bowline_wire::mcp::method;
use bowline_wire::object::text_field;
use bowline_wire::splice::{EditedText, write_string};
use bowline_wire::{MemberList, RpcMessage};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::demux::{required_capability, secret_wanted, with_server_name};
use crate::link::{InputRequestError, LinkError};

/// Forwards all input requests of a result to a client, and returns the members of the next round.
/// Ids of accepted URL elicitations are added to `elicitations`. Dropping the future cancels the
/// requests.
pub(super) async fn collect_responses(
    server: &str,
    caller: &Arc<dyn ClientHandle>,
    result: &[u8],
    elicitations: &mut Vec<String>,
) -> Result<MemberList, LinkError> {
    let input = parse_required(result)?;
    let mut open = OpenClientRequests {
        caller,
        request_ids: Vec::new(),
    };
    let mut waits = Vec::new();
    for input_request in &input.requests {
        let params = input_request.params.map(|at| at.slice(result));
        let mut client_request = ClientRequest::parse(server, &input_request.method, params)?;
        let elicitation_id = client_request.elicitation_id.take();
        waits.push((elicitation_id, open.send_request(client_request)?));
    }
    let mut answers = Vec::new();
    for (elicitation_id, wait) in waits {
        let answer = wait.wait_result().await?;
        // A declined elicitation has no completion.
        elicitations.extend(
            elicitation_id.filter(|_| text_field(&answer, "action").as_deref() == Some("accept")),
        );
        answers.push(answer);
    }
    // All requests are answered, so nothing remains to cancel.
    open.request_ids.clear();
    let keys = input
        .requests
        .iter()
        .map(|input_request| input_request.key.as_ref());
    let answers = keys.zip(answers.iter().map(AsRef::as_ref));
    let state = input.state.map(|at| at.slice(result));
    Ok(write_continuation(answers, state))
}

/// Returns the members of the next round if a result has no input requests and only wants a retry.
pub(super) fn continue_without_client(result: &[u8]) -> Result<MemberList, LinkError> {
    let required = parse_required(result)?;
    if !required.requests.is_empty() {
        return Err(LinkError::InputFailed(InputRequestError::NoClient));
    }
    let state = required.state.map(|at| at.slice(result));
    Ok(write_continuation(std::iter::empty(), state))
}

fn parse_required(result: &[u8]) -> Result<InputRequired<'_>, LinkError> {
    InputRequired::parse(result).map_err(|bad| match bad {
        InputError::TooMany => LinkError::InputFailed(InputRequestError::TooMany {
            questions_max: QUESTIONS_MAX,
        }),
        bad => LinkError::BadResponse(bad.to_string().into()),
    })
}

/// An input request of a server.
#[derive(Debug)]
struct ClientRequest {
    /// Elicitation id of a URL elicitation.
    elicitation_id: Option<String>,
    message: RpcMessage,
    method: Arc<str>,
    capability: ClientCapability,
    server: Arc<str>,
}

impl ClientRequest {
    fn parse(server: &str, method: &str, params: Option<&[u8]>) -> Result<Self, LinkError> {
        let id = new_elicitation_id()?;
        let params = params.map(|params| request_to_legacy(method, params, &id));
        let elicitation_id = matches!(params, Some(Cow::Owned(_))).then_some(id);
        let params = params.as_deref();
        let params = params.map(|source| EditedText { source, edits: &[] });
        let mut line = Vec::new();
        // The client handle assigns the id.
        write_request(&mut line, 0, method, params);
        let message = RpcMessage::parse_from_server(line.into());
        let bad = |_| LinkError::BadResponse("a question in it cannot be read".into());
        let message = message.map_err(bad)?;
        let method: Arc<str> = method.into();
        match required_capability(&message) {
            Some(capability) => Ok(Self {
                elicitation_id,
                message,
                method,
                capability,
                server: server.into(),
            }),
            None => Err(LinkError::InputFailed(InputRequestError::Undeclared {
                method,
            })),
        }
    }
}

/// Returns a random elicitation id.
fn new_elicitation_id() -> Result<String, LinkError> {
    let mut random = [0; 16];
    let failed = |error: getrandom::Error| InputRequestError::NotSent(error.to_string().into());
    getrandom::fill(&mut random).map_err(failed)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

/// Notifies a client about complete URL elicitations, after the request has completed.
pub(super) fn notify_elicitations_complete(
    caller: &Arc<dyn ClientHandle>,
    elicitations: &[String],
) {
    for id in elicitations {
        let mut params = b"{\"elicitationId\":".to_vec();
        write_string(&mut params, id);
        params.push(b'}');
        let mut out = Vec::new();
        write_notification(&mut out, method::ELICITATION_COMPLETE, Some(&params));
        caller.notify(out.into());
    }
}

/// Unanswered requests to a client; cancelled on drop.
#[derive(Debug)]
struct OpenClientRequests<'a> {
    caller: &'a Arc<dyn ClientHandle>,
    request_ids: Vec<ServerRequestId>,
}

impl Drop for OpenClientRequests<'_> {
    fn drop(&mut self) {
        for number in self.request_ids.drain(..) {
            self.caller.cancel_request(number);
        }
    }
}

impl OpenClientRequests<'_> {
    fn send_request(&mut self, client_request: ClientRequest) -> Result<PendingInput, LinkError> {
        let ClientRequest {
            message,
            method,
            capability,
            server,
            ..
        } = client_request;
        if capability == ClientCapability::ElicitationForm
            && let Some(property) = secret_wanted(message.params().unwrap_or_default())
        {
            tracing::warn!(%server, %property, "declined a form that asks for a secret");
            return Ok(PendingInput::Ready(DECLINED));
        }
        if !self.caller.capabilities().supports(capability) {
            return Err(LinkError::InputFailed(InputRequestError::Undeclared {
                method,
            }));
        }
        let (request, id_at) = with_server_name(&message, &server);
        let (sender, receiver) = oneshot::channel();
        let reply = move |answer: Option<Bytes>| {
            // A dropped receiver is fine.
            let _ = sender.send(answer);
        };
        let server_request = ServerRequest::new(request, id_at, capability, reply);
        self.request_ids.extend(self.caller.request(server_request));
        Ok(PendingInput::Waiting {
            receiver,
            method,
            capability,
        })
    }
}

/// Answer to a form that is not shown to the user.
const DECLINED: &[u8] = br#"{"action":"decline"}"#;

/// Answer to an elicitation after an error or no answer.
const CANCELLED: &[u8] = br#"{"action":"cancel"}"#;

/// An answer, known or pending.
#[derive(Debug)]
enum PendingInput {
    Ready(&'static [u8]),
    Waiting {
        receiver: oneshot::Receiver<Option<Bytes>>,
        method: Arc<str>,
        capability: ClientCapability,
    },
}

impl PendingInput {
    /// Waits for the client's result.
    async fn wait_result(self) -> Result<Cow<'static, [u8]>, LinkError> {
        let (receiver, method, capability) = match self {
            Self::Ready(value) => return Ok(Cow::Borrowed(value)),
            Self::Waiting {
                receiver,
                method,
                capability,
            } => (receiver, method, capability),
        };
        let answer = receiver.await.ok().flatten();
        let answer = answer.and_then(|answer| RpcMessage::parse_from_client(answer).ok());
        if let Some(result) = answer.as_ref().and_then(RpcMessage::result) {
            return Ok(Cow::Owned(result.to_vec()));
        }
        match capability {
            // A round carries results only, so report the cancellation as a result.
            ClientCapability::ElicitationForm | ClientCapability::ElicitationUrl => {
                Ok(Cow::Borrowed(CANCELLED))
            }
            ClientCapability::Sampling
            | ClientCapability::SamplingTools
            | ClientCapability::Roots => Err(LinkError::InputFailed(InputRequestError::Refused {
                method,
            })),
        }
    }
}
