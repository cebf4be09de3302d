//! Settings of the audit trail and its export.

use std::path::PathBuf;

use super::AuditConfig;
use super::file::ConfigFile;

/// Resolves the audit settings, with defaults for absent keys.
pub(super) fn resolve_audit(file: &ConfigFile) -> AuditConfig {
    let fallback = AuditConfig::default();
    AuditConfig {
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

/// Export target of audit rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditExportConfig {
    /// A syslog receiver.
    Syslog(SyslogAddress),
    /// The collector of `[telemetry] otlp`.
    Otlp,
}

/// Address of a syslog receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// Datagrams to `HOST:PORT`.
    Udp(String),
    /// A TCP connection to `HOST:PORT`.
    Tcp(String),
    /// Datagrams to a local socket.
    Unix(PathBuf),
}

impl AuditExportConfig {
    /// The accepted forms, for error messages.
    pub const EXPECTED: &str = "\"syslog:HOST:PORT\", \"syslog+tcp:HOST:PORT\", \
                                       \"syslog:/dev/log\" or \"otlp\"";

    /// Parses an export target.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "otlp" {
            return Some(Self::Otlp);
        }
        let to = match text.split_once(':')? {
            ("syslog", path) if path.starts_with('/') => SyslogAddress::Unix(path.into()),
            ("syslog", address) => SyslogAddress::Udp(parse_host_port(address)?),
            ("syslog+tcp", address) => SyslogAddress::Tcp(parse_host_port(address)?),
            _ => return None,
        };
        Some(Self::Syslog(to))
    }
}

fn parse_host_port(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    (is_port && !host.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_export_target_parses() {
        let syslog = |to| Some(AuditExportConfig::Syslog(to));
        for (text, want) in [
            ("otlp", Some(AuditExportConfig::Otlp)),
            (
                "syslog:log.example:514",
                syslog(SyslogAddress::Udp("log.example:514".into())),
            ),
            (
                "syslog+tcp:[::1]:601",
                syslog(SyslogAddress::Tcp("[::1]:601".into())),
            ),
            (
                "syslog:/dev/log",
                syslog(SyslogAddress::Unix("/dev/log".into())),
            ),
            ("syslog:host", None),
            ("syslog::514", None),
            ("http://x", None),
            ("", None),
        ] {
            assert_eq!(AuditExportConfig::parse(text), want, "{text}");
        }
    }
}
