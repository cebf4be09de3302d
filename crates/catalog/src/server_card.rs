//! Server cards, shown until the server itself has listed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_wire::object;
use bowline_wire::scan::{self, KeyPolicy};
use bytes::Bytes;
use thiserror::Error;

use crate::catalog::ListPages;
use crate::manifest::ServerManifest;

/// Maximum bytes of a card.
pub const CARD_BYTES_MAX: u64 = 1024 * 1024;

/// Revision of a card without a revision.
const DEFAULT_REVISION: &[u8] = b"\"2025-06-18\"";

/// A server card: a JSON document describing a server and its tools.
///
/// A local card (a path or a `file:` URL) is read once, when the server is spawned. Until the first
/// start of a lazy server, the `tools` of its card are listed; the server's own list replaces them.
/// A card without a tool list (`"tools": "dynamic"`) shows none. Any other URL is only shown in
/// status and never fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCard {
    /// Location.
    pub source: Arc<str>,
    /// The lists of the card, if read and with tools.
    pub manifest: Option<ServerManifest>,
}

/// Why a card is unusable.
#[derive(Debug, Error)]
pub enum ServerCardError {
    /// Read error.
    #[error("the card {} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// Too large.
    #[error("the card {} is larger than {CARD_BYTES_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    /// Not a JSON object.
    #[error("the card {} is no JSON object", .0.display())]
    NoObject(PathBuf),
}

impl ServerCard {
    /// Reads a card from a file; may block on the disk.
    pub fn load(source: &str) -> Result<Self, ServerCardError> {
        let path = match source.split_once("://") {
            Some(("file", path)) => Path::new(path),
            // Not fetched: that would be an unsolicited request.
            Some(_) => {
                return Ok(Self {
                    source: source.into(),
                    manifest: None,
                });
            }
            None => Path::new(source),
        };
        let text = read_bounded(path)?;
        let is_object = text.trim_ascii_start().first() == Some(&b'{');
        if !is_object || scan::check_json(&text, KeyPolicy::UniqueOutermost).is_err() {
            return Err(ServerCardError::NoObject(path.to_owned()));
        }
        Ok(Self {
            source: source.into(),
            manifest: to_manifest(&text),
        })
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, ServerCardError> {
    use std::io::Read as _;
    let unreadable = |source| ServerCardError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = Vec::new();
    let mut file = file.take(CARD_BYTES_MAX + 1);
    file.read_to_end(&mut text).map_err(unreadable)?;
    match u64::try_from(text.len()) {
        Ok(len) if len <= CARD_BYTES_MAX => Ok(text),
        _ => Err(ServerCardError::TooLarge(path.to_owned())),
    }
}

/// Converts a card to the lists its server would return.
fn to_manifest(card: &[u8]) -> Option<ServerManifest> {
    let member = |key| object::field(card, key).map(|at| at.slice(card));
    let tools = member("tools").filter(|tools| tools.starts_with(b"["))?;
    let mut initialize = Vec::from(&b"{\"protocolVersion\":"[..]);
    initialize.extend_from_slice(member("protocolVersion").unwrap_or(DEFAULT_REVISION));
    initialize.extend_from_slice(b",\"capabilities\":");
    initialize.extend_from_slice(member("capabilities").unwrap_or(b"{\"tools\":{}}"));
    for key in ["serverInfo", "instructions"] {
        if let Some(value) = member(key) {
            initialize.extend_from_slice(format!(",\"{key}\":").as_bytes());
            initialize.extend_from_slice(value);
        }
    }
    initialize.push(b'}');
    let page = [b"{\"tools\":", tools, b"}"].concat();
    Some(ServerManifest {
        initialize: initialize.into(),
        pages: ListPages {
            tools: Some(vec![Bytes::from(page)]),
            ..ListPages::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_converts_to_manifest() {
        let card = br#"{"serverInfo":{"name":"n","version":"1"},"protocolVersion":"2025-11-25",
            "tools":[{"name":"t"}]}"#;
        let read = to_manifest(card).unwrap();
        let expect = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"#;
        assert!(read.initialize.starts_with(expect));
        scan::check_json(&read.initialize, KeyPolicy::Unique).unwrap();
        let pages = read.pages.tools.unwrap();
        assert_eq!(pages, [Bytes::from_static(br#"{"tools":[{"name":"t"}]}"#)]);
        assert_eq!(to_manifest(br#"{"tools":"dynamic"}"#), None);
    }

    #[test]
    fn remote_card_is_not_fetched() {
        let source = "https://example.com/.well-known/mcp/server-card.json";
        let card = ServerCard::load(source).unwrap();
        assert_eq!((&*card.source, card.manifest), (source, None));
        let missing = ServerCard::load("file:///nowhere/card.json").unwrap_err();
        assert!(
            matches!(missing, ServerCardError::Unreadable { .. }),
            "{missing}"
        );
    }
}
