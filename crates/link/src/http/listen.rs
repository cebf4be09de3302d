//! Hears what a server says outside requests.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::Class;
use http::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::carry::is_message;
use super::client::{HttpClient, Wait};
use super::endpoint::Endpoint;
use super::refusal::{self, Content, foreign, refusal};
use super::road::{Parcel, Road, Verb};
use super::session::Held;
use super::stream::{Ended, Resume, Stream};
use super::talk::Talk;
use super::{HttpSpec, clock};
use crate::link::{Exit, LinkError};

/// How long a new session may take to be made when no request waits for it.
const RENEW: Duration = Duration::from_secs(30);

/// Whether to listen again.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Again,
    Never,
}

/// Keeps a stream open on which the server may speak at any time, where it offers one.
pub(super) async fn listen(talk: Arc<Talk>) {
    let mut resume = Resume::default();
    let mut sessions = talk.session.subscribe();
    loop {
        let held = Arc::clone(&sessions.borrow_and_update());
        let next = tokio::select! {
            biased;
            _ = talk.over() => return,
            // A stream belongs to its session.
            _ = sessions.changed() => {
                resume = Resume::default();
                continue;
            }
            next = hear(&talk, &held, &mut resume) => next,
        };
        if next == Next::Never {
            return without(&talk, sessions).await;
        }
        tokio::select! {
            biased;
            _ = talk.over() => return,
            () = sleep(resume.pause()) => {}
        }
    }
}

/// No stream is opened any more, so nobody is to wait for one.
async fn without(talk: &Talk, mut sessions: watch::Receiver<Arc<Held>>) {
    loop {
        sessions.borrow_and_update().set_listened();
        tokio::select! {
            biased;
            _ = talk.over() => return,
            _ = sessions.changed() => {}
        }
    }
}

/// Opens the stream once and reads it to its end.
async fn hear(talk: &Arc<Talk>, held: &Arc<Held>, resume: &mut Resume) -> Next {
    let opened = talk.open_stream(held, resume, None).await;
    held.set_listened();
    let response = match opened {
        Ok(response) => response,
        Err(LinkError::Unreachable(_)) => {
            talk.lose();
            return Next::Never;
        }
        // What carries requests is away, and the server with it, as far as can be seen from here.
        Err(LinkError::Elsewhere(failure)) if failure.class == Class::Unavailable => {
            talk.lose();
            return Next::Never;
        }
        Err(error) if refusal::is_transient(&error) => return Next::Again,
        Err(error) => {
            debug!(server = %talk.spec.server, %error, "no stream");
            return Next::Never;
        }
    };
    match response.status {
        StatusCode::OK if refusal::content(&response.headers) == Content::Events => {
            let stream = Stream::new(response.body, talk.spec.limits.body_bytes_max);
            read(talk, stream, resume).await;
            Next::Again
        }
        StatusCode::NOT_FOUND if held.id.is_some() => {
            match talk.renew(held, clock::after(RENEW)).await {
                Ok(()) => Next::Again,
                Err(_) => Next::Never,
            }
        }
        // Credentials may be better next time.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Next::Again,
        _ => {
            let error = refusal(response).await;
            if refusal::is_transient(&error) {
                return Next::Again;
            }
            debug!(server = %talk.spec.server, %error, "no stream");
            Next::Never
        }
    }
}

/// Takes every message of a stream.
async fn read(talk: &Arc<Talk>, mut stream: Stream, resume: &mut Resume) {
    loop {
        match stream.next(resume).await {
            Ok(event) if is_message(event.event.as_deref()) => {
                talk.take(event.data.into(), None);
            }
            Ok(_) => {}
            Err(Ended::Fault(_)) => {
                // What broke the limit would break it again.
                resume.last = None;
                return;
            }
            Err(Ended::Over | Ended::Broken(_)) => return,
        }
    }
}

/// Opens the one stream of the first HTTP transport and waits until it says where to post.
pub(super) async fn find_endpoint(
    spec: &HttpSpec,
    client: &Arc<dyn HttpClient>,
    deadline: Instant,
) -> Result<(Endpoint, Stream), LinkError> {
    let road = Road::new(Arc::clone(client), Arc::clone(&spec.credentials));
    let held = Held::none();
    let parcel = Parcel {
        to: &spec.url,
        verb: &Verb::Get,
        held: &held,
        last_event: None,
    };
    let wait = Wait {
        connect: Some(deadline),
        first_byte: Some(deadline),
        leaving: &|| {},
    };
    let response = road.send(parcel, wait).await?;
    if response.status != StatusCode::OK {
        return Err(refusal(response).await);
    }
    if refusal::content(&response.headers) != Content::Events {
        return Err(foreign(response).await);
    }
    let mut stream = Stream::new(response.body, spec.limits.body_bytes_max);
    let mut resume = Resume::default();
    let found = timeout_at(deadline, async {
        loop {
            match stream.next(&mut resume).await {
                Ok(event) if event.event.as_deref() == Some("endpoint") => break Ok(event.data),
                Ok(_) => {}
                Err(_) => break Err(LinkError::Lost(Exit::Closed)),
            }
        }
    });
    let data = found.await.map_err(|_| LinkError::Timeout {
        sent: bowline_core::pending::Sent::Perhaps,
    })??;
    let bad = |reason: &str| LinkError::BadAnswer(reason.into());
    let text = std::str::from_utf8(&data).map_err(|_| bad("the endpoint is no text"))?;
    let endpoint = spec.url.resolve(text);
    let endpoint = endpoint.map_err(|error| bad(&error.to_string()))?;
    if !endpoint.is_same_origin(&spec.url) {
        return Err(bad("the endpoint is on another origin"));
    }
    Ok((endpoint, stream))
}

/// Reads the one stream of the first HTTP transport; its end is the end of the link.
pub(super) async fn listen_only(talk: Arc<Talk>, stream: Stream) {
    let mut resume = Resume::default();
    tokio::select! {
        biased;
        // Answers would come here, and come no more.
        exit = talk.ended() => talk.finish(exit),
        () = read(&talk, stream, &mut resume) => talk.finish(Exit::Closed),
    }
}
