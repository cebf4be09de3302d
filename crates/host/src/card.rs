//! What a server's card says of it, shown until the server itself has spoken.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_wire::object;
use bowline_wire::scan::{self, Keys};
use bytes::Bytes;
use thiserror::Error;

use crate::catalog::Pages;
use crate::manifest::Manifest;

/// No card is larger.
pub const CARD_BYTES_MAX: u64 = 1024 * 1024;

/// Of a card that says no revision.
const REVISION: &[u8] = b"\"2025-06-18\"";

/// A server card: a JSON document in which a server says what it is and offers.
///
/// A card on this machine (a path, or a `file:` address) is read once, when the server is
/// spawned. Until a lazy server is started for the first time, the `tools` of its card are listed
/// in place of its own; they are replaced whole by what the server says. A card that does not
/// list its tools (`"tools": "dynamic"`) shows none. Any other address is kept and shown in
/// status, and nothing is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Where it is.
    pub source: Arc<str>,
    /// What it says, where it was read and lists tools.
    pub(crate) manifest: Option<Manifest>,
}

/// Why a card cannot be used.
#[derive(Debug, Error)]
pub enum CardError {
    /// It cannot be read.
    #[error("the card {} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is too large.
    #[error("the card {} is larger than {CARD_BYTES_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    /// It is no JSON object.
    #[error("the card {} is no JSON object", .0.display())]
    NoObject(PathBuf),
}

impl Card {
    /// Reads a card where it is a file, which may wait for the disk.
    pub(crate) fn read(source: &str) -> Result<Self, CardError> {
        let path = match source.split_once("://") {
            Some(("file", path)) => Path::new(path),
            // Somebody else's to fetch: here it would be a request that nobody asked for.
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
        if !is_object || scan::check(&text, Keys::UniqueOutside).is_err() {
            return Err(CardError::NoObject(path.to_owned()));
        }
        Ok(Self {
            source: source.into(),
            manifest: manifest(&text),
        })
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, CardError> {
    use std::io::Read as _;
    let unreadable = |source| CardError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = Vec::new();
    let mut file = file.take(CARD_BYTES_MAX + 1);
    file.read_to_end(&mut text).map_err(unreadable)?;
    match u64::try_from(text.len()) {
        Ok(len) if len <= CARD_BYTES_MAX => Ok(text),
        _ => Err(CardError::TooLarge(path.to_owned())),
    }
}

/// Reads a card as if its server had said it.
fn manifest(card: &[u8]) -> Option<Manifest> {
    let member = |key| object::field(card, key).map(|at| at.of(card));
    let tools = member("tools").filter(|tools| tools.starts_with(b"["))?;
    let mut initialize = Vec::from(&b"{\"protocolVersion\":"[..]);
    initialize.extend_from_slice(member("protocolVersion").unwrap_or(REVISION));
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
    Some(Manifest {
        initialize: initialize.into(),
        pages: Pages {
            tools: Some(vec![Bytes::from(page)]),
            ..Pages::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_reads_as_what_its_server_would_say() {
        let card = br#"{"serverInfo":{"name":"n","version":"1"},"protocolVersion":"2025-11-25",
            "tools":[{"name":"t"}]}"#;
        let read = manifest(card).unwrap();
        let expect = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"#;
        assert!(read.initialize.starts_with(expect));
        scan::check(&read.initialize, Keys::Unique).unwrap();
        let pages = read.pages.tools.unwrap();
        assert_eq!(pages, [Bytes::from_static(br#"{"tools":[{"name":"t"}]}"#)]);
        assert_eq!(manifest(br#"{"tools":"dynamic"}"#), None);
    }

    #[test]
    fn a_card_elsewhere_is_kept_and_not_fetched() {
        let source = "https://example.com/.well-known/mcp/server-card.json";
        let card = Card::read(source).unwrap();
        assert_eq!((&*card.source, card.manifest), (source, None));
        let missing = Card::read("file:///nowhere/card.json").unwrap_err();
        assert!(matches!(missing, CardError::Unreadable { .. }), "{missing}");
    }
}
