//! Options and errors of [`Host::spawn`](crate::Host::spawn).

use std::sync::Arc;
use std::time::Duration;

use bowline_core::duration::parse_duration;
use bowline_core::error::FailureClass;
use serde::{Deserialize, Deserializer, de};
use thiserror::Error;

use crate::dial::MissingFeature;
use crate::server_card::{ServerCard, ServerCardError};
use crate::spec::{NameClash, ServerSpec};

/// Options of a spawn; unset options keep the spec's values. In a document, durations are texts
/// such as `30s`, and unknown keys are refused:
///
/// ```
/// use std::time::Duration;
///
/// use bowline_host::SpawnOptions;
///
/// let options: SpawnOptions = serde_json::from_str(r#"{"lazy": true, "keep_alive": "5m"}"#)?;
/// assert_eq!(options.keep_alive, Some(Duration::from_secs(300)));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct SpawnOptions {
    /// True if the first call starts the server.
    pub lazy: Option<bool>,
    /// Idle time after which the server is stopped until the next call.
    #[serde(deserialize_with = "parse_duration_text")]
    pub keep_alive: Option<Duration>,
    /// Location of the server card: a file or URL. See [`ServerCard`].
    pub card: Option<String>,
    /// Consecutive failures that open the breaker.
    pub circuit_threshold: Option<u32>,
    /// Open time of the breaker.
    #[serde(deserialize_with = "parse_duration_text")]
    pub circuit_reset: Option<Duration>,
    /// Restarts...
    pub max_restarts: Option<u32>,
    /// ...within this window.
    #[serde(deserialize_with = "parse_duration_text")]
    pub restart_window: Option<Duration>,
    /// Replaces a running server of the same name, whose calls in flight finish first. Otherwise
    /// such a name is refused, and no server ends by accident.
    pub replace: bool,
}

/// Why a server was not added.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// Missing name.
    #[error("a server needs a name")]
    NoName,
    /// A server with the same slug of its given name exists.
    #[error(transparent)]
    NameClash(NameClash),
    /// Refused by the guard; nothing was started.
    #[error("server `{server}` is refused: {reason}")]
    Denied {
        /// The server.
        server: Arc<str>,
        /// The guard's reason.
        reason: Arc<str>,
    },
    /// The transport needs a feature that is not built in; nothing was started.
    #[error(transparent)]
    MissingFeature(#[from] MissingFeature),
    /// A server of this name runs.
    #[error("server `{0}` runs already")]
    InUse(Arc<str>),
    /// Unusable card; nothing was started.
    #[error("the card of server `{server}` cannot be used")]
    Card {
        /// The server.
        server: Arc<str>,
        /// The card error.
        #[source]
        source: ServerCardError,
    },
    /// The start failed; the server was removed.
    #[error("server `{server}` could not be started: {reason}")]
    Start {
        /// The server.
        server: Arc<str>,
        /// Failure class.
        class: FailureClass,
        /// Failure message.
        reason: Arc<str>,
    },
    /// The host shuts down.
    #[error("the host is shutting down")]
    ShuttingDown,
}

impl SpawnOptions {
    /// Applies the options to a spec.
    pub(crate) async fn apply_to(&self, mut spec: ServerSpec) -> Result<ServerSpec, SpawnError> {
        spec.lazy = self.lazy.unwrap_or(spec.lazy);
        spec.idle_stop = self.keep_alive.or(spec.idle_stop);
        let breaker = &mut spec.breaker;
        breaker.failures_max = self.circuit_threshold.unwrap_or(breaker.failures_max);
        breaker.cooldown = self.circuit_reset.unwrap_or(breaker.cooldown);
        let restart = &mut spec.restart;
        restart.restarts_max = self.max_restarts.unwrap_or(restart.restarts_max);
        restart.window = self.restart_window.unwrap_or(restart.window);
        if let Some(source) = self.card.clone() {
            let read = tokio::task::spawn_blocking(move || ServerCard::load(&source)).await;
            let card = read.map_err(|_| SpawnError::ShuttingDown)?;
            let card = card.map_err(|source| SpawnError::Card {
                server: Arc::clone(&spec.name),
                source,
            })?;
            spec.card = Some(Arc::new(card));
        }
        Ok(spec)
    }
}

/// Reads a duration as in a config file.
fn parse_duration_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else {
        return Ok(None);
    };
    let duration = parse_duration(&text).ok_or_else(|| {
        de::Error::custom(format_args!(
            "`{text}` is no duration such as `30s` or `5m`"
        ))
    })?;
    Ok(Some(duration))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_read_durations_as_text() {
        let document = json!({"lazy": true, "keep_alive": "5m", "circuit_reset": "100ms",
            "restart_window": null, "max_restarts": 3});
        let options: SpawnOptions = serde_json::from_value(document).unwrap();
        let expected = SpawnOptions {
            lazy: Some(true),
            keep_alive: Some(Duration::from_secs(300)),
            circuit_reset: Some(Duration::from_millis(100)),
            max_restarts: Some(3),
            ..SpawnOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn unknown_options_and_bad_durations_are_refused() {
        for document in [
            json!({"lasy": true}),
            json!({"keep_alive": "5 m"}),
            json!({"keep_alive": 5}),
        ] {
            let read = serde_json::from_value::<SpawnOptions>(document.clone());
            assert!(read.is_err(), "{document}");
        }
    }
}
