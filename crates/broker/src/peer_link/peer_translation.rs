//! Translates requests of a link for a peer, and the peer's responses for the link.

use std::sync::Arc;

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::era::Era;
use bowline_link::{LinkError, LinkRequest};
use bowline_wire::ByteSpan;
use bowline_wire::jsonrpc::Envelope;
use bowline_wire::splice::{replace_span, write_string};
use bytes::Bytes;

use crate::frames::BrokerResponse;

/// Returns the parameters with the tool name of the peer's server.
pub(super) fn renamed_params(request: &LinkRequest) -> Bytes {
    let params = request.message.params.clone();
    let Some(rename) = &request.rename else {
        return params;
    };
    let mut name = Vec::with_capacity(rename.to.len() + 2);
    write_string(&mut name, &rename.to);
    let at = ByteSpan {
        start: rename.at.start,
        end: rename.at.end,
    };
    replace_span(&params, at, &name).into()
}

pub(super) fn to_link_response(
    request: &LinkRequest,
    response: BrokerResponse,
) -> Result<ServerResponse, LinkError> {
    match response {
        BrokerResponse::Output {
            result: body, era, ..
        } => Ok(ServerResponse {
            era,
            ..request.result_response(&body)
        }),
        BrokerResponse::RpcError { error, era } => Ok(ServerResponse {
            era,
            ..peer_error_response(request, &error)
        }),
        BrokerResponse::Failed(failure) => Err(LinkError::RemoteFailure(Arc::new(failure))),
        BrokerResponse::Manifest { .. } => Err(LinkError::BadResponse(
            "it lists tools in place of a result".into(),
        )),
    }
}

/// Wraps a server error under the caller's id, byte for byte.
fn peer_error_response(request: &LinkRequest, error: &[u8]) -> ServerResponse {
    let envelope = Envelope::Error {
        id: Some(&request.message.id),
    };
    let mut bytes = Vec::with_capacity(envelope.capacity(error.len()));
    let body_at = envelope.write(&mut bytes, |out| out.extend_from_slice(error));
    ServerResponse {
        body: BodyKind::Error,
        body_at,
        bytes: bytes.into(),
        era: Era::Legacy,
    }
}
