//! What the audit trail keeps, and where its rows are shipped to.

use std::path::PathBuf;

use super::Audit;
use super::file::File;

/// Returns what the trail keeps, with defaults for what the file leaves out.
pub(super) fn limits_of(file: &File) -> Audit {
    let fallback = Audit::default();
    Audit {
        calls: file.audit_calls.unwrap_or(fallback.calls),
        payload: file.audit_payload.unwrap_or(fallback.payload),
        max_bytes: file.audit_bytes.unwrap_or(fallback.max_bytes),
        keep: file.audit_keep.unwrap_or(fallback.keep),
        denials_max_bytes: file
            .audit_denials_bytes
            .unwrap_or(fallback.denials_max_bytes),
        min_age: file.audit_min_age.unwrap_or(fallback.min_age),
        max_age: file.audit_max_age,
    }
}

/// Where rows go as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditExport {
    /// To syslog.
    Syslog(SyslogTo),
    /// To the collector of `[telemetry] otlp`.
    Otlp,
}

/// How syslog is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogTo {
    /// By datagrams to `HOST:PORT`.
    Udp(String),
    /// Over a connection to `HOST:PORT`.
    Tcp(String),
    /// By datagrams to a socket of this machine.
    Unix(PathBuf),
}

impl AuditExport {
    /// What is expected where it is wrong.
    pub(crate) const EXPECTED: &str = "\"syslog:HOST:PORT\", \"syslog+tcp:HOST:PORT\", \
                                       \"syslog:/dev/log\" or \"otlp\"";

    /// Reads it as people write it.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "otlp" {
            return Some(Self::Otlp);
        }
        let to = match text.split_once(':')? {
            ("syslog", path) if path.starts_with('/') => SyslogTo::Unix(path.into()),
            ("syslog", address) => SyslogTo::Udp(to_address(address)?),
            ("syslog+tcp", address) => SyslogTo::Tcp(to_address(address)?),
            _ => return None,
        };
        Some(Self::Syslog(to))
    }
}

fn to_address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    (is_port && !host.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_export_is_read() {
        let syslog = |to| Some(AuditExport::Syslog(to));
        for (text, want) in [
            ("otlp", Some(AuditExport::Otlp)),
            (
                "syslog:log.example:514",
                syslog(SyslogTo::Udp("log.example:514".into())),
            ),
            (
                "syslog+tcp:[::1]:601",
                syslog(SyslogTo::Tcp("[::1]:601".into())),
            ),
            ("syslog:/dev/log", syslog(SyslogTo::Unix("/dev/log".into()))),
            ("syslog:host", None),
            ("syslog::514", None),
            ("http://x", None),
            ("", None),
        ] {
            assert_eq!(AuditExport::parse(text), want, "{text}");
        }
    }
}
