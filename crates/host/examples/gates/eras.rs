//! What the edge does where caller and server are of two eras: a call of the modern one, and an
//! answer in the words of its caller.

use std::borrow::Cow;

use bowline_core::call::{Call, Reply};
use bowline_core::era::{Era, Stateless};
use bowline_wire::era::result::{Completing, to_legacy, to_modern};
use bowline_wire::jsonrpc::write_result;

/// Who answers.
const INFO: &[u8] = br#"{"name":"gates","version":"1"}"#;

/// What every request of the modern era says of itself.
const META: &str = concat!(
    r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{}},"#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"caller","version":"1.2.3"}}}"#,
);

/// Makes a call one of the modern era.
pub(crate) fn modernise(call: &mut Call) {
    let mut params = call.params.to_vec();
    params.pop();
    params.extend_from_slice(META.as_bytes());
    call.params = params.into();
    call.stateless = Some(Box::new(Stateless {
        claims: Some(Vec::new()),
        retried: false,
        task: None,
    }));
}

/// Writes an answer of the other era for the caller.
pub(crate) fn told(call: &Call, reply: &Reply) -> Vec<u8> {
    let result = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    let method = call.subject.method();
    let told = match call.era() {
        Era::Legacy => to_legacy(result, method),
        Era::Modern => {
            let known = Completing {
                server_info: Some(INFO),
                hint: None,
            };
            Cow::Owned(to_modern(result, method, &known))
        }
    };
    let mut out = Vec::with_capacity(told.len() + 64);
    write_result(&mut out, &call.id, &told);
    out
}
