//! The edge's translation between eras: a modern call, and a response in the caller's era.

use std::borrow::Cow;

use bowline_core::call::{CallReply, CallRequest};
use bowline_core::era::{Era, StatelessContext};
use bowline_wire::era::result_translation::{ResultContext, to_legacy, to_modern};
use bowline_wire::jsonrpc::write_result;

/// Server info.
const INFO: &[u8] = br#"{"name":"gates","version":"1"}"#;

/// `_meta` of every modern request.
const META: &str = concat!(
    r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{}},"#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"caller","version":"1.2.3"}}}"#,
);

/// Turns a call into a modern call.
pub(crate) fn to_modern_call(call: &mut CallRequest) {
    let mut params = call.message.params.to_vec();
    params.pop();
    params.extend_from_slice(META.as_bytes());
    call.message.params = params.into();
    call.message.era = Era::Modern;
    call.stateless = Some(Box::new(StatelessContext {
        header_claims: Some(Vec::new()),
        is_continuation: false,
        task_id: None,
    }));
}

/// Translates a response to the caller's era.
pub(crate) fn to_caller_era(call: &CallRequest, reply: &CallReply) -> Vec<u8> {
    let result = reply.response.body_bytes();
    let method = call.subject.method();
    let told = match call.message.era {
        Era::Legacy => to_legacy(result, method),
        Era::Modern => {
            let known = ResultContext {
                server_info: Some(INFO),
                hint: None,
            };
            Cow::Owned(to_modern(result, method, &known))
        }
    };
    let mut out = Vec::with_capacity(told.len() + 64);
    write_result(&mut out, &call.message.id, &told);
    out
}
