//! Relays `inputRequests` of a modern server to a modern client unchanged, after the same checks as
//! for legacy server requests.

use bowline_core::client_handle::{ClientCapabilities, ClientCapability};
use bowline_wire::era::input_required::{self, InputError, ParsedInputRequest};
use bowline_wire::jsonrpc::write_request;
use bowline_wire::splice::EditedText;
use bowline_wire::{ByteSpan, ObjectEditor, RpcMessage};
use thiserror::Error;

use super::{annotate, required_capability, secret_forms};

/// Why input requests are not relayed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RelayError {
    /// The `inputRequests` are malformed.
    #[error(transparent)]
    Malformed(#[from] InputError),
    /// No client supports this method.
    #[error("no client can be asked `{0}`")]
    Unknown(String),
    /// The client has not declared the capability.
    #[error("the client has not declared the capability for what it asks")]
    Undeclared(ClientCapability),
    /// A form asks for a secret.
    #[error("a form must not ask for secrets (`{0}`)")]
    Secret(String),
}

/// Returns the text with the server name added to each of the input requests at `at`.
///
/// # Errors
/// An input request must not reach the client.
pub fn relay_input_requests(
    server: &str,
    capabilities: ClientCapabilities,
    text: &[u8],
    at: ByteSpan,
) -> Result<Vec<u8>, RelayError> {
    let mut editor = ObjectEditor::new(text);
    for request in &input_required::parse_input_requests(text, at)? {
        check_input_request(text, request, capabilities)?;
        annotate::add_server_name(&mut editor, request.at, request.params, server);
    }
    Ok(editor.finish())
}

/// Checks an input request as the legacy server request with the same method.
fn check_input_request(
    text: &[u8],
    request: &ParsedInputRequest<'_>,
    capabilities: ClientCapabilities,
) -> Result<(), RelayError> {
    let params = request
        .params
        .map(|at| EditedText::from_source(at.slice(text)));
    let mut line = Vec::new();
    write_request(&mut line, 0, &request.method, params);
    let message = RpcMessage::parse_from_server(line.into()).map_err(|_| InputError::Requests)?;
    let Some(capability) = required_capability(&message) else {
        return Err(RelayError::Unknown(request.method.as_ref().to_owned()));
    };
    if !capabilities.supports(capability) {
        return Err(RelayError::Undeclared(capability));
    }
    let secret = secret_forms::find_secret_property(message.params().unwrap_or_default());
    match secret.filter(|_| capability == ClientCapability::ElicitationForm) {
        Some(property) => Err(RelayError::Secret(property.into_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bowline_wire::object;

    use super::*;

    fn relay(questions: &str) -> Result<String, RelayError> {
        let result = format!(r#"{{"a":1,"inputRequests":{questions},"requestState":"s"}}"#);
        let at = object::field(result.as_bytes(), "inputRequests").unwrap();
        let abilities = [ClientCapability::ElicitationForm, ClientCapability::Roots]
            .into_iter()
            .fold(
                ClientCapabilities::default(),
                ClientCapabilities::with_capability,
            );
        let told = relay_input_requests("bank", abilities, result.as_bytes(), at)?;
        Ok(String::from_utf8(told).unwrap())
    }

    #[test]
    fn relayed_requests_name_server_otherwise_unchanged() {
        let form = r#"{"method":"elicitation/create","x":[1e400],"params":{"message":"m"}}"#;
        let told = relay(&format!(r#"{{"f":{form},"r":{{"method":"roots/list"}}}}"#));
        let mark = r#""_meta":{"dev.bowline/server":"bank"}"#;
        let form = form.replace(r#""params":{"#, &format!(r#""params":{{{mark},"#));
        let want = format!(
            r#"{{"a":1,"inputRequests":{{"f":{form},"r":{{"params":{{{mark}}},"method":"roots/list"}}}},"requestState":"s"}}"#
        );
        assert_eq!(told.unwrap(), want);
    }

    #[test]
    fn relay_rejects_secret_undeclared_and_unknown() {
        let secret = concat!(
            r#"{"k":{"method":"elicitation/create","params":{"message":"m","requestedSchema":"#,
            r#"{"type":"object","properties":{"api_key":{"type":"string"}}}}}}"#,
        );
        assert_eq!(relay(secret), Err(RelayError::Secret("api_key".into())));
        let sampling = r#"{"k":{"method":"sampling/createMessage","params":{}}}"#;
        let undeclared = RelayError::Undeclared(ClientCapability::Sampling);
        assert_eq!(relay(sampling), Err(undeclared));
        let unknown = r#"{"k":{"method":"tools/call","params":{}}}"#;
        assert_eq!(
            relay(unknown),
            Err(RelayError::Unknown("tools/call".into()))
        );
        assert_eq!(
            relay("[]"),
            Err(RelayError::Malformed(InputError::Requests))
        );
    }
}
