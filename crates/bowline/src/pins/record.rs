//! The files of pins: versioned, and with a checksum over their content.

use bowline_core::lint::{Code, Finding};
use bowline_core::pins::{Hash, Pin, PinKind, Pins, State, Version};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::state::hex;

/// Version of the files.
const VERSION: u32 = 1;

/// One file.
#[derive(Serialize, Deserialize)]
pub(super) struct Sealed {
    v: u32,
    /// Of the content, byte for byte.
    sha256: String,
    content: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    server: String,
    tools: Vec<Tool>,
    /// Files of older gateways hold tools only: all else is new to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    prompts: Vec<Tool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    resources: Vec<Tool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    templates: Vec<Tool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    introduction: Vec<Tool>,
}

#[derive(Serialize, Deserialize)]
struct Tool {
    name: String,
    approved: Seen,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Seen>,
    reviewed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<Changed>,
    #[serde(default)]
    quarantined: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    findings: Vec<Found>,
}

#[derive(Serialize, Deserialize)]
struct Seen {
    hash: String,
    at_ms: u64,
    /// As the server wrote it.
    definition: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Changed {
    seen: Seen,
    since_ms: u64,
    reverted: bool,
}

#[derive(Serialize, Deserialize)]
struct Found {
    code: String,
    place: String,
    detail: String,
}

impl Sealed {
    /// Writes a whole file.
    pub(super) fn write(server: &str, pins: &Pins) -> Option<Vec<u8>> {
        let of = |kind| -> Vec<_> {
            let entries = pins.iter(kind);
            entries.map(|(name, pin)| Tool::new(name, pin)).collect()
        };
        let content = Content {
            server: server.to_owned(),
            tools: of(PinKind::Tool),
            prompts: of(PinKind::Prompt),
            resources: of(PinKind::Resource),
            templates: of(PinKind::Template),
            introduction: of(PinKind::Introduction),
        };
        let content = serde_json::value::to_raw_value(&content).ok()?;
        let sealed = Self {
            v: VERSION,
            sha256: sum(&content),
            content,
        };
        let mut bytes = serde_json::to_vec(&sealed).ok()?;
        bytes.push(b'\n');
        Some(bytes)
    }

    /// Reads a file; none where it is not what was written.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let sealed: Self = serde_json::from_slice(bytes).ok()?;
        (sealed.v == VERSION && sealed.sha256 == sum(&sealed.content)).then_some(sealed)
    }

    /// Returns what it holds of that server.
    pub(super) fn pins(&self, server: &str) -> Option<Pins> {
        let content: Content = serde_json::from_str(self.content.get()).ok()?;
        if content.server != server {
            return None;
        }
        let mut pins = Vec::new();
        for (kind, entries) in [
            (PinKind::Tool, content.tools),
            (PinKind::Prompt, content.prompts),
            (PinKind::Resource, content.resources),
            (PinKind::Template, content.templates),
            (PinKind::Introduction, content.introduction),
        ] {
            if entries.len() > kind.entries_max() {
                return None;
            }
            for entry in entries {
                let (name, pin) = entry.pin()?;
                pins.push((kind, name, pin));
            }
        }
        Some(Pins::restore(pins))
    }
}

fn sum(content: &RawValue) -> String {
    hex(&Sha256::digest(content.get()))
}

impl Tool {
    fn new(name: &str, pin: &Pin) -> Self {
        let changed = match &pin.state {
            State::Changed {
                seen,
                since_ms,
                reverted,
            } => Some(Changed {
                seen: Seen::new(seen),
                since_ms: *since_ms,
                reverted: *reverted,
            }),
            State::Approved | State::Quarantined => None,
        };
        Self {
            name: name.to_owned(),
            approved: Seen::new(&pin.approved),
            before: pin.before.as_ref().map(Seen::new),
            reviewed: pin.reviewed,
            changed,
            quarantined: pin.state == State::Quarantined,
            findings: pin.findings.iter().map(Found::new).collect(),
        }
    }

    fn pin(self) -> Option<(std::sync::Arc<str>, Pin)> {
        let state = match (self.changed, self.quarantined) {
            (Some(changed), _) => State::Changed {
                seen: changed.seen.version()?,
                since_ms: changed.since_ms,
                reverted: changed.reverted,
            },
            (None, true) => State::Quarantined,
            (None, false) => State::Approved,
        };
        let before = match self.before {
            Some(before) => Some(before.version()?),
            None => None,
        };
        let findings = self.findings.into_iter().map(Found::finding);
        let pin = Pin {
            approved: self.approved.version()?,
            before,
            reviewed: self.reviewed,
            state,
            findings: findings.collect::<Option<_>>()?,
        };
        Some((self.name.into(), pin))
    }
}

impl Seen {
    fn new(version: &Version) -> Self {
        let text = version.definition.as_ref();
        Self {
            hash: hex(&version.hash),
            at_ms: version.at_ms,
            definition: text.and_then(|text| String::from_utf8(text.to_vec()).ok()),
        }
    }

    fn version(self) -> Option<Version> {
        Some(Version {
            hash: read_hash(&self.hash)?,
            definition: self.definition.map(Bytes::from),
            at_ms: self.at_ms,
        })
    }
}

impl Found {
    fn new(finding: &Finding) -> Self {
        Self {
            code: finding.code.as_str().to_owned(),
            place: finding.place.as_ref().to_owned(),
            detail: finding.detail.as_ref().to_owned(),
        }
    }

    fn finding(self) -> Option<Finding> {
        Some(Finding {
            code: Code::read(&self.code)?,
            place: self.place.into(),
            detail: self.detail.into(),
        })
    }
}

/// Reads the hexadecimal form of a hash.
pub(crate) fn read_hash(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    let digits: Vec<_> = text.chars().map(|digit| digit.to_digit(16)).collect();
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let [Some(high), Some(low)] = pair else {
            return None;
        };
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(hash)
}
