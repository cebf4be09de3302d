//! Credential headers for upstream servers, read at the time of each request.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};

use bowline_core::BoxFuture;
use bowline_core::redact::Redactor;
use bowline_core::sync::lock;
use bowline_host::redaction::ResultSecrets;
use bowline_link::http::upstream_credentials::{CredentialError, UpstreamCredentials};
use http::{HeaderName, HeaderValue};

use crate::telemetry;
use bowline_config::{ConfigTemplate, RemoteConfig};

/// The configured headers of a server.
pub(super) enum UpstreamHeaders {
    /// Constant headers, built once.
    Fixed(Vec<(HeaderName, HeaderValue)>),
    /// Headers with values from changeable sources.
    Template(Arc<TemplateHeaders>),
}

/// Headers expanded from templates for each request.
pub(super) struct TemplateHeaders {
    templates: Vec<(HeaderName, ConfigTemplate)>,
    /// The headers of the last read; a different result means a changed secret.
    last_headers: Mutex<Vec<(HeaderName, HeaderValue)>>,
    redactors: SecretRedactors,
}

/// Redactors that must learn a secret before the secret leaves the gateway.
#[derive(Clone)]
pub(super) struct SecretRedactors {
    /// Redacts messages about the server.
    pub(super) server_messages: Arc<Redactor>,
    /// Redacts logs and traces.
    pub(super) logs: telemetry::LogRedactor,
    /// Redacts results of all servers.
    pub(super) results: Arc<ResultSecrets>,
}

impl UpstreamHeaders {
    /// Builds the headers named in the config.
    pub(super) fn from_remote(remote: &RemoteConfig, redactors: SecretRedactors) -> Self {
        let is_fixed = remote
            .headers
            .iter()
            .all(|(_, template)| template.is_fixed());
        let headers = TemplateHeaders {
            templates: remote.headers.clone(),
            last_headers: Mutex::default(),
            redactors,
        };
        match headers.read_headers() {
            Ok(headers) if is_fixed => Self::Fixed(headers),
            Ok(_) | Err(_) => Self::Template(Arc::new(headers)),
        }
    }
}

impl UpstreamCredentials for UpstreamHeaders {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        match self {
            Self::Fixed(headers) => Ok(headers.clone()),
            Self::Template(read) => read.read_headers(),
        }
    }

    fn refresh(&self) -> BoxFuture<'_, ()> {
        match self {
            Self::Fixed(_) => Box::pin(std::future::ready(())),
            Self::Template(read) => {
                let read = Arc::clone(read);
                Box::pin(async move {
                    let refresh = move || {
                        for (_, template) in &read.templates {
                            template.refetch_secrets();
                        }
                    };
                    // Secret programs block, so refreshes run on a blocking thread.
                    let _ran = tokio::task::spawn_blocking(refresh).await;
                })
            }
        }
    }

    fn digest(&self) -> u64 {
        let mut mixer = DefaultHasher::new();
        match self {
            Self::Fixed(headers) => headers.hash(&mut mixer),
            // The digest covers the templates, since values may change.
            Self::Template(read) => read.templates.hash(&mut mixer),
        }
        mixer.finish()
    }
}

impl TemplateHeaders {
    fn read_headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let mut secrets = bowline_config::ServerSecrets::default();
        let values = self.templates.iter().map(|(name, template)| {
            let unusable = |reason: String| CredentialError {
                name: name.to_string(),
                reason,
            };
            let label = format!("header {name}");
            let text = template.expand_with(|reference, value| {
                secrets.record_expansion(&label, reference, value);
            });
            let text = text.map_err(unusable)?;
            secrets.record_header(name.as_str(), &text);
            let mut value = HeaderValue::from_str(&text)
                .map_err(|_| unusable("it holds what no header can".to_owned()))?;
            value.set_sensitive(true);
            Ok((name.clone(), value))
        });
        let headers = values.collect::<Result<Vec<_>, _>>()?;
        let mut last = lock(&self.last_headers);
        if *last != headers {
            // Learned before the first server sees the value and can echo it.
            secrets.for_each_secret(|label, secret| {
                self.redactors.server_messages.add_secret(label, secret);
                self.redactors.logs.add_secret(label, secret);
            });
            for (label, secret) in secrets.certain_secrets() {
                self.redactors.results.add_secret(label, secret);
            }
            let is_first = last.is_empty();
            last.clone_from(&headers);
            drop(last);
            if let Some((_, template)) = self.templates.first().filter(|_| !is_first) {
                template.secret_sources().vault().notify_changed();
            }
        }
        Ok(headers)
    }
}
