//! Headers that prove who we are to a server, read when they are sent.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};

use bowline_core::redact::Redactor;
use bowline_core::sync::lock;
use bowline_host::redaction::ResultSecrets;
use bowline_link::BoxFuture;
use bowline_link::http::credentials::{CredentialError, Credentials};
use http::{HeaderName, HeaderValue};

use crate::config::{self, Remote, Template};
use crate::telemetry;

/// The headers of one server.
pub(super) enum Headers {
    /// They never change, so they are made once.
    Fixed(Vec<(HeaderName, HeaderValue)>),
    /// Some come from places that may change at any time.
    Read(Arc<Read>),
}

/// Headers that are read when they are sent.
pub(super) struct Read {
    named: Vec<(HeaderName, Template)>,
    /// Those that were read last: what is not among them is news.
    last: Mutex<Vec<(HeaderName, HeaderValue)>>,
    learners: Learners,
}

/// Those who must know a secret before anybody else sees it.
#[derive(Clone)]
pub(super) struct Learners {
    /// What is said of the server.
    pub(super) server: Arc<Redactor>,
    /// What is logged and traced.
    pub(super) all: telemetry::Secrets,
    /// What results of all servers are cleaned of.
    pub(super) results: Arc<ResultSecrets>,
}

impl Headers {
    /// Returns the headers that the config names.
    pub(super) fn of(remote: &Remote, learners: Learners) -> Self {
        let is_fixed = remote
            .headers
            .iter()
            .all(|(_, template)| template.is_fixed());
        let read = Read {
            named: remote.headers.clone(),
            last: Mutex::default(),
            learners,
        };
        match read.headers() {
            Ok(headers) if is_fixed => Self::Fixed(headers),
            Ok(_) | Err(_) => Self::Read(Arc::new(read)),
        }
    }
}

impl Credentials for Headers {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        match self {
            Self::Fixed(headers) => Ok(headers.clone()),
            Self::Read(read) => read.headers(),
        }
    }

    fn refresh(&self) -> BoxFuture<'_, ()> {
        match self {
            Self::Fixed(_) => Box::pin(std::future::ready(())),
            Self::Read(read) => {
                let read = Arc::clone(read);
                Box::pin(async move {
                    let refresh = move || {
                        for (_, template) in &read.named {
                            template.refresh();
                        }
                    };
                    // Programs are waited for where nobody else waits.
                    let _ran = tokio::task::spawn_blocking(refresh).await;
                })
            }
        }
    }

    fn digest(&self) -> u64 {
        let mut mixer = DefaultHasher::new();
        match self {
            Self::Fixed(headers) => headers.hash(&mut mixer),
            // What they are read from counts: what it holds now may be other tomorrow.
            Self::Read(read) => read.named.hash(&mut mixer),
        }
        mixer.finish()
    }
}

impl Read {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let mut secrets = config::Secrets::default();
        let values = self.named.iter().map(|(name, template)| {
            let unusable = |reason: String| CredentialError {
                name: name.to_string(),
                reason,
            };
            let label = format!("header {name}");
            let text = template.value_noting(|reference, value| {
                secrets.expanded(&label, reference, value);
            });
            let text = text.map_err(unusable)?;
            secrets.header(name.as_str(), &text);
            let mut value = HeaderValue::from_str(&text)
                .map_err(|_| unusable("it holds what no header can".to_owned()))?;
            value.set_sensitive(true);
            Ok((name.clone(), value))
        });
        let headers = values.collect::<Result<Vec<_>, _>>()?;
        let mut last = lock(&self.last);
        if *last != headers {
            // Before the first server sees it, which may say it back.
            secrets.teach(|label, secret| {
                self.learners.server.learn(label, secret);
                self.learners.all.learn(label, secret);
            });
            for (label, secret) in secrets.known() {
                self.learners.results.learn(label, secret);
            }
            let is_first = last.is_empty();
            last.clone_from(&headers);
            drop(last);
            if let Some((_, template)) = self.named.first().filter(|_| !is_first) {
                template.sources().vault().ring();
            }
        }
        Ok(headers)
    }
}
