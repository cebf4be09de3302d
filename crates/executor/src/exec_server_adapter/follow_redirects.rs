//! Performs a request and follows redirects, if the client asks for redirects. Each hop is a
//! separate request, checked against the allow-list.

use std::sync::Arc;

use bowline_core::error::ExecutionStatus;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{HeaderLines, HttpResponse, RequestBody};

use crate::execserver::{ExecHttpRequest, RedirectPolicy};
use crate::frames::{SecretHeader, StreamFault, StreamFaultCode};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderName, StatusCode};

use crate::http_egress::{self, EgressRequest, HttpEgress, invalid_request};

/// Redirects of one request.
const HOPS_MAX: usize = 10;

/// Headers dropped on a redirect to another origin.
const CREDENTIAL_HEADERS: [HeaderName; 3] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("proxy-authorization"),
];

/// Headers dropped together with the body.
const BODY_HEADERS: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_ENCODING];

/// A request between redirects.
#[derive(Debug)]
struct RedirectState<'a> {
    method: &'a str,
    to: HttpEndpoint,
    headers: HeaderLines,
    fills: Vec<SecretHeader>,
    body: &'a [u8],
}

/// Performs a request and follows redirects.
pub(super) async fn send_following(
    egress: &HttpEgress,
    request_head: &ExecHttpRequest,
) -> Result<HttpResponse, StreamFault> {
    let mut state = RedirectState::new(request_head)?;
    // The exec-server protocol does not name the server of a request.
    let server: Arc<str> = "".into();
    for _ in 0..=HOPS_MAX {
        let egress_request = EgressRequest {
            server: &server,
            method: state.method,
            to: &state.to,
            headers: state.headers.clone(),
            fills: &state.fills,
            body: RequestBody::Whole(state.body),
            connect_ms: None,
            first_byte_ms: None,
        };
        let response = egress.send_request(egress_request).await?;
        if request_head.redirects == RedirectPolicy::Stop || !state.follow_redirect(&response)? {
            return Ok(response);
        }
    }
    Err(redirect_fault("the answers lead on and on"))
}

impl<'a> RedirectState<'a> {
    fn new(request_head: &'a ExecHttpRequest) -> Result<Self, StreamFault> {
        // The URL fragment is for the client only.
        let address = request_head.url.split('#').next().unwrap_or_default();
        let to =
            HttpEndpoint::parse(address).map_err(|error| invalid_request(&error.to_string()))?;
        let mut headers = HeaderLines::default();
        let mut fills = Vec::new();
        for header in &request_head.headers {
            match &header.secret_name {
                None => {
                    let (name, value) = (header.name.as_bytes(), header.value.as_bytes());
                    http_egress::push_header(&mut headers, name, value)?;
                }
                Some(secret) => fills.push(SecretHeader {
                    header: Arc::clone(&header.name),
                    before: Arc::clone(&header.value),
                    secret: Arc::clone(secret),
                    after: "".into(),
                }),
            }
        }
        Ok(Self {
            method: &request_head.method,
            to,
            headers,
            fills,
            body: request_head.body.as_deref().unwrap_or_default(),
        })
    }

    /// Applies a redirect response; `false` if the response is no redirect.
    fn follow_redirect(&mut self, response: &HttpResponse) -> Result<bool, StreamFault> {
        let drops_body = match response.status {
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => self.method == "POST",
            StatusCode::SEE_OTHER => self.method != "HEAD",
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => false,
            _ => return Ok(false),
        };
        let Some(location) = response.headers.get(&LOCATION) else {
            return Ok(false);
        };
        let location = std::str::from_utf8(location).ok();
        let to = location.and_then(|location| self.to.resolve(location).ok());
        let to = to.ok_or_else(|| redirect_fault("the answer leads to what is no address"))?;
        if self.to.is_private() && !to.is_private() {
            return Err(redirect_fault(
                "the answer leads to where others can read along",
            ));
        }
        if !to.is_same_origin(&self.to) {
            self.fills.clear();
            self.remove_headers(&CREDENTIAL_HEADERS);
        }
        if drops_body {
            self.method = "GET";
            self.body = &[];
            self.remove_headers(&BODY_HEADERS);
        }
        self.to = to;
        Ok(true)
    }

    fn remove_headers(&mut self, names: &[HeaderName]) {
        for name in names {
            self.headers = self.headers.without_header(name);
        }
    }
}

fn redirect_fault(reason: &str) -> StreamFault {
    StreamFault {
        code: StreamFaultCode::Head,
        execution: ExecutionStatus::Unknown,
        reason: reason.into(),
    }
}
