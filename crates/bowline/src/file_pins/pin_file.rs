//! The pin file format: versioned, with a checksum over the content.

use bowline_core::lint::{LintCode, LintFinding};
use bowline_core::pins::{DefinitionVersion, Pin, PinKind, PinState, ServerPins, parse_hash};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use bowline_core::hex::to_hex;

/// Version of the file format.
const VERSION: u32 = 1;

/// One pin file.
#[derive(Serialize, Deserialize)]
pub(super) struct PinFile {
    v: u32,
    /// SHA-256 of the content bytes.
    sha256: String,
    content: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
struct PinFileContent {
    server: String,
    tools: Vec<PinRecord>,
    /// Absent in files of older gateways, which hold tools only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    prompts: Vec<PinRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    resources: Vec<PinRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    templates: Vec<PinRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    introduction: Vec<PinRecord>,
}

#[derive(Serialize, Deserialize)]
struct PinRecord {
    name: String,
    approved: DefinitionRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<DefinitionRecord>,
    reviewed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<PinChangeRecord>,
    #[serde(default)]
    quarantined: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    findings: Vec<FindingRecord>,
}

#[derive(Serialize, Deserialize)]
struct DefinitionRecord {
    hash: String,
    at_ms: u64,
    /// The text written by the server.
    definition: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct PinChangeRecord {
    seen: DefinitionRecord,
    since_ms: u64,
    reverted: bool,
}

#[derive(Serialize, Deserialize)]
struct FindingRecord {
    code: String,
    place: String,
    detail: String,
}

impl PinFile {
    /// Encodes a pin file.
    pub(super) fn encode(server: &str, pins: &ServerPins) -> Option<Vec<u8>> {
        let records = |kind| -> Vec<_> {
            let entries = pins.iter(kind);
            entries
                .map(|(name, pin)| PinRecord::new(name, pin))
                .collect()
        };
        let content = PinFileContent {
            server: server.to_owned(),
            tools: records(PinKind::Tool),
            prompts: records(PinKind::Prompt),
            resources: records(PinKind::Resource),
            templates: records(PinKind::Template),
            introduction: records(PinKind::Introduction),
        };
        let content = serde_json::value::to_raw_value(&content).ok()?;
        let sealed = Self {
            v: VERSION,
            sha256: content_sha256(&content),
            content,
        };
        let mut bytes = serde_json::to_vec(&sealed).ok()?;
        bytes.push(b'\n');
        Some(bytes)
    }

    /// Decodes a pin file; `None` for a damaged file or an unknown version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let sealed: Self = serde_json::from_slice(bytes).ok()?;
        (sealed.v == VERSION && sealed.sha256 == content_sha256(&sealed.content)).then_some(sealed)
    }

    /// Returns the pins of this server.
    pub(super) fn to_pins(&self, server: &str) -> Option<ServerPins> {
        let content: PinFileContent = serde_json::from_str(self.content.get()).ok()?;
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
                let (name, pin) = entry.into_pin()?;
                pins.push((kind, name, pin));
            }
        }
        Some(ServerPins::from_entries(pins))
    }
}

fn content_sha256(content: &RawValue) -> String {
    to_hex(&Sha256::digest(content.get()))
}

impl PinRecord {
    fn new(name: &str, pin: &Pin) -> Self {
        let changed = match &pin.state {
            PinState::Changed {
                seen,
                since_ms,
                reverted,
            } => Some(PinChangeRecord {
                seen: DefinitionRecord::new(seen),
                since_ms: *since_ms,
                reverted: *reverted,
            }),
            PinState::Approved | PinState::Quarantined => None,
        };
        Self {
            name: name.to_owned(),
            approved: DefinitionRecord::new(&pin.approved),
            before: pin.previous.as_ref().map(DefinitionRecord::new),
            reviewed: pin.is_reviewed,
            changed,
            quarantined: pin.state == PinState::Quarantined,
            findings: pin.findings.iter().map(FindingRecord::new).collect(),
        }
    }

    fn into_pin(self) -> Option<(std::sync::Arc<str>, Pin)> {
        let state = match (self.changed, self.quarantined) {
            (Some(changed), _) => PinState::Changed {
                seen: changed.seen.into_version()?,
                since_ms: changed.since_ms,
                reverted: changed.reverted,
            },
            (None, true) => PinState::Quarantined,
            (None, false) => PinState::Approved,
        };
        let before = match self.before {
            Some(before) => Some(before.into_version()?),
            None => None,
        };
        let findings = self.findings.into_iter().map(FindingRecord::into_finding);
        let pin = Pin {
            approved: self.approved.into_version()?,
            previous: before,
            is_reviewed: self.reviewed,
            state,
            findings: findings.collect::<Option<_>>()?,
        };
        Some((self.name.into(), pin))
    }
}

impl DefinitionRecord {
    fn new(version: &DefinitionVersion) -> Self {
        let text = version.definition.as_ref();
        Self {
            hash: to_hex(&version.hash),
            at_ms: version.at_ms,
            definition: text.and_then(|text| String::from_utf8(text.to_vec()).ok()),
        }
    }

    fn into_version(self) -> Option<DefinitionVersion> {
        Some(DefinitionVersion {
            hash: parse_hash(&self.hash)?,
            definition: self.definition.map(Bytes::from),
            at_ms: self.at_ms,
        })
    }
}

impl FindingRecord {
    fn new(finding: &LintFinding) -> Self {
        Self {
            code: finding.code.as_str().to_owned(),
            place: finding.location.as_ref().to_owned(),
            detail: finding.detail.as_ref().to_owned(),
        }
    }

    fn into_finding(self) -> Option<LintFinding> {
        Some(LintFinding {
            code: LintCode::parse(&self.code)?,
            location: self.place.into(),
            detail: self.detail.into(),
        })
    }
}
