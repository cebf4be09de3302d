//! A request that tells a server of a subscription or a log level, and waits for its acceptance.

use std::sync::Arc;

use bowline_core::call::BodyKind;
use bowline_core::error::CallError;
use bowline_core::log_level::LogLevel;
use bowline_link::LinkRequest;
use bowline_runtime::Clock;
use bowline_wire::mcp::method;
use bowline_wire::splice::write_string;

use super::STEP_TIMEOUT;
use crate::callpath::{ResponseWait, to_call_error};
use crate::supervisor::ReadyLink;

/// A request with a single parameter, a string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncRequest<'a> {
    method: &'static str,
    /// Name of the parameter.
    key: &'static str,
    value: &'a str,
}

impl<'a> SyncRequest<'a> {
    /// Returns a request about a resource.
    pub(super) const fn for_uri(method: &'static str, uri: &'a str) -> Self {
        Self {
            method,
            key: "uri",
            value: uri,
        }
    }

    /// Returns the request that sets a log level.
    pub(crate) const fn for_level(level: LogLevel) -> Self {
        Self {
            method: method::LOGGING_SET_LEVEL,
            key: "level",
            value: level.as_str(),
        }
    }

    /// Sends the request and waits for its acceptance.
    pub(crate) async fn send(
        self,
        clock: &dyn Clock,
        server: &Arc<str>,
        ready: &ReadyLink,
    ) -> Result<(), CallError> {
        let mut params = format!("{{\"{}\":", self.key).into_bytes();
        write_string(&mut params, self.value);
        params.push(b'}');
        let end = clock.instant(clock.now().plus(STEP_TIMEOUT));
        let request = LinkRequest::new_internal(self.method, params.into(), end);
        let timeout = ResponseWait::for_server(bowline_core::time::to_millis(STEP_TIMEOUT));
        let response = ready.link.request(request).await;
        let response = response
            .map_err(|error| to_call_error(&error, server, ready.ended_generation(), timeout))?;
        match response.body {
            BodyKind::Result => Ok(()),
            BodyKind::Error => Err(CallError::Refused {
                server: Arc::clone(server),
                error: response.bytes.slice(response.body_at),
            }),
        }
    }
}
