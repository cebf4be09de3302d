//! Headers that prove who we are to a server, read when they are sent.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bowline_link::http::credentials::{CredentialError, Credentials};
use http::{HeaderName, HeaderValue};

use crate::config::{Remote, Template};

/// The headers of one server.
pub(super) enum Headers {
    /// They never change, so they are made once.
    Fixed(Vec<(HeaderName, HeaderValue)>),
    /// Some come from files that may change at any time.
    Read(Vec<(HeaderName, Template)>),
}

impl Headers {
    /// Returns the headers that the config names.
    pub(super) fn of(remote: &Remote) -> Self {
        let is_fixed = remote
            .headers
            .iter()
            .all(|(_, template)| template.is_fixed());
        match read(&remote.headers) {
            Ok(headers) if is_fixed => Self::Fixed(headers),
            Ok(_) | Err(_) => Self::Read(remote.headers.clone()),
        }
    }
}

impl Credentials for Headers {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        match self {
            Self::Fixed(headers) => Ok(headers.clone()),
            Self::Read(named) => read(named),
        }
    }

    fn digest(&self) -> u64 {
        let mut mixer = DefaultHasher::new();
        match self {
            Self::Fixed(headers) => headers.hash(&mut mixer),
            // What they are read from counts: what it holds now may be other tomorrow.
            Self::Read(named) => named.hash(&mut mixer),
        }
        mixer.finish()
    }
}

fn read(
    named: &[(HeaderName, Template)],
) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
    let values = named.iter().map(|(name, template)| {
        let unusable = |reason: String| CredentialError {
            name: name.to_string(),
            reason,
        };
        let text = template.value().map_err(unusable)?;
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| unusable("it holds what no header can".to_owned()))?;
        value.set_sensitive(true);
        Ok((name.clone(), value))
    });
    values.collect()
}
