//! Performs a request and goes where its answer leads, if the client wants that. Each hop is a
//! request of its own, and is let go or not like any other.

use std::sync::Arc;

use bowline_core::error::Execution;
use bowline_link::http::client::{Lines, Response, Upload};
use bowline_link::http::endpoint::Endpoint;
use bowline_wire::execserver::{Asked, Redirects};
use bowline_wire::executor::{Fault, FaultCode, Fill};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderName, StatusCode};

use crate::executor::engine::{self, Engine, Order, invalid};

/// Hops of one request.
const HOPS_MAX: usize = 10;

/// What another origin is not told.
const PRIVATE: [HeaderName; 3] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("proxy-authorization"),
];

/// What is about a body that is not sent again.
const OF_BODY: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_ENCODING];

/// A request that is on its way.
#[derive(Debug)]
struct Journey<'a> {
    method: &'a str,
    to: Endpoint,
    lines: Lines,
    fills: Vec<Fill>,
    body: &'a [u8],
}

/// Performs a request.
pub(super) async fn perform(engine: &Engine, asked: &Asked) -> Result<Response, Fault> {
    let mut journey = Journey::new(asked)?;
    // This wire does not say for which server a request is.
    let server: Arc<str> = "".into();
    for _ in 0..=HOPS_MAX {
        let order = Order {
            server: &server,
            method: journey.method,
            to: &journey.to,
            lines: journey.lines.clone(),
            fills: &journey.fills,
            body: Upload::Whole(journey.body),
            connect_ms: None,
            first_byte_ms: None,
        };
        let response = engine.perform(order).await?;
        if asked.redirects == Redirects::Stop || !journey.turn(&response)? {
            return Ok(response);
        }
    }
    Err(astray("the answers lead on and on"))
}

impl<'a> Journey<'a> {
    fn new(asked: &'a Asked) -> Result<Self, Fault> {
        // What follows it is for the client alone.
        let address = asked.url.split('#').next().unwrap_or_default();
        let to = Endpoint::parse(address).map_err(|error| invalid(&error.to_string()))?;
        let mut lines = Lines::default();
        let mut fills = Vec::new();
        for header in &asked.headers {
            match &header.secret {
                None => {
                    let (name, value) = (header.name.as_bytes(), header.value.as_bytes());
                    engine::header(&mut lines, name, value)?;
                }
                Some(secret) => fills.push(Fill {
                    header: Arc::clone(&header.name),
                    before: Arc::clone(&header.value),
                    secret: Arc::clone(secret),
                    after: "".into(),
                }),
            }
        }
        Ok(Self {
            method: &asked.method,
            to,
            lines,
            fills,
            body: asked.body.as_deref().unwrap_or_default(),
        })
    }

    /// Turns to where an answer leads; `false` where it leads nowhere.
    fn turn(&mut self, response: &Response) -> Result<bool, Fault> {
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
        let to = to.ok_or_else(|| astray("the answer leads to what is no address"))?;
        if self.to.is_private() && !to.is_private() {
            return Err(astray("the answer leads to where others can read along"));
        }
        if !to.is_same_origin(&self.to) {
            self.fills.clear();
            self.forget(&PRIVATE);
        }
        if drops_body {
            self.method = "GET";
            self.body = &[];
            self.forget(&OF_BODY);
        }
        self.to = to;
        Ok(true)
    }

    fn forget(&mut self, names: &[HeaderName]) {
        for name in names {
            self.lines = self.lines.without(name);
        }
    }
}

fn astray(reason: &str) -> Fault {
    Fault {
        code: FaultCode::Head,
        execution: Execution::Unknown,
        reason: reason.into(),
    }
}
