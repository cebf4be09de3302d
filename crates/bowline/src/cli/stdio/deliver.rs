//! Brings back what the gateway answered, over a stream that may break on the way.

use std::time::Duration;

use bowline_wire::sse::Decoder;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;

use super::message::{self, Trouble, one_line};
use super::shim::{EVENTS, Lines, Session, Shim, refused};
use crate::cli::client::ANSWER_BYTES_MAX;

/// Times a stream that broke is asked for again without hearing anything new.
const RESUMES_MAX: u32 = 5;
/// Wait before a stream is asked for again, unless it said another.
const RETRY: Duration = Duration::from_millis(100);
/// Longest such wait.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Whether the client sees the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    Client,
    Nobody,
}

/// Who waits for what comes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// The id of the request, where an answer is wanted.
    pub(super) id: Option<&'a str>,
    pub(super) audience: Audience,
    pub(super) lines: &'a Lines,
}

/// Where in a stream we are.
#[derive(Debug, Default)]
struct Place {
    /// The last event that has an id, to come back to.
    seen: Option<String>,
    retry: Option<Duration>,
    /// Resumes since something new was heard.
    resumes: u32,
}

impl Shim {
    /// Hands on what came back for a message of `session`; gives the answer, or says that there
    /// is none.
    pub(super) async fn deliver(
        &self,
        response: Response<Incoming>,
        session: &Session,
        wanted: Wanted<'_>,
    ) -> Result<Bytes, Trouble> {
        let status = response.status();
        if is_stream(&response) {
            return self.stream(response, session, wanted).await;
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(|_error| lost())?.to_bytes();
        let Some(id) = wanted.id else {
            return if status.is_success() {
                Ok(body)
            } else {
                Err(refused(status, &body))
            };
        };
        let line = one_line(&body);
        if message::answers(&line, id) {
            if wanted.audience == Audience::Client {
                let _gone = wanted.lines.send(line.clone()).await;
            }
            return Ok(line);
        }
        Err(if status.is_success() {
            lost()
        } else {
            refused(status, &body)
        })
    }

    /// Reads a stream to the answer. One that breaks is asked for again where it said how.
    async fn stream(
        &self,
        response: Response<Incoming>,
        session: &Session,
        wanted: Wanted<'_>,
    ) -> Result<Bytes, Trouble> {
        let mut place = Place::default();
        let mut body = response.into_body();
        loop {
            if let Some(answer) = wanted.read(body, &mut place).await? {
                return Ok(answer);
            }
            if wanted.id.is_none() {
                return Ok(Bytes::new());
            }
            body = self.resume(session, &mut place).await?.into_body();
        }
    }

    /// Opens a stream again after the last event of it.
    async fn resume(
        &self,
        session: &Session,
        place: &mut Place,
    ) -> Result<Response<Incoming>, Trouble> {
        while let Some(seen) = &place.seen {
            place.resumes += 1;
            if place.resumes > RESUMES_MAX {
                break;
            }
            tokio::time::sleep(place.retry.unwrap_or(RETRY).min(RETRY_MAX)).await;
            match self.listen(session, Some(seen)).await {
                Ok(response) if is_stream(&response) => return Ok(response),
                // A gateway that knows nothing of the call any more says so.
                Ok(response) if response.status() == StatusCode::NOT_FOUND => break,
                Ok(_) => {}
                Err(url) => {
                    // Not there at all: the next round asks the place that was found.
                    let _failure = self.find_again(&url).await;
                }
            }
        }
        Err(lost())
    }
}

impl Wanted<'_> {
    /// Hands on events until the answer, or until the stream ends without it.
    async fn read(self, mut body: Incoming, place: &mut Place) -> Result<Option<Bytes>, Trouble> {
        let mut decoder = Decoder::new(EVENTS);
        while let Some(Ok(frame)) = body.frame().await {
            let Some(chunk) = frame.data_ref() else {
                continue;
            };
            decoder.push(chunk).map_err(|_too_long| lost())?;
            while let Some(event) = decoder.next() {
                place.resumes = 0;
                place.retry = event.retry_ms.map(Duration::from_millis).or(place.retry);
                place.seen = event.id.or_else(|| place.seen.take());
                let line = one_line(&event.data);
                let answer = self.id.is_some_and(|id| message::answers(&line, id));
                if !line.is_empty() && (self.audience == Audience::Client || !answer) {
                    let _gone = self.lines.send(line.clone()).await;
                }
                if answer {
                    return Ok(Some(line));
                }
            }
        }
        Ok(None)
    }
}

pub(super) fn is_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    response.status().is_success() && is_events
}

/// What is said of a request whose answer will not come.
pub(super) fn lost() -> Trouble {
    Trouble::unknown(
        "The connection to the gateway was lost before the answer came. The call may have run; \
         do not repeat it unless that is safe.",
    )
}
