//! Log lines on stderr, redacted before they are written.

use std::io::{self, Write};

use bowline_core::redact::LogRedactor;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::registry::LookupSpan;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Parses a format name; unknown names mean text.
    #[must_use]
    pub fn parse(name: Option<&str>) -> Self {
        match name {
            Some("json") => Self::Json,
            Some(_) | None => Self::Text,
        }
    }
}

/// Builds the tracing layer for log lines.
pub(super) fn log_layer<S>(
    format: LogFormat,
    secrets: LogRedactor,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(RedactingMakeWriter(secrets))
        .with_ansi(false);
    match format {
        LogFormat::Text => Box::new(lines),
        LogFormat::Json => Box::new(lines.json()),
    }
}

/// Creates redacting writers.
#[derive(Clone, Debug)]
struct RedactingMakeWriter(LogRedactor);

impl<'a> MakeWriter<'a> for RedactingMakeWriter {
    type Writer = RedactingWriter<io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        RedactingWriter {
            redactor: self.0.clone(),
            output: io::stderr(),
        }
    }
}

/// Writes one complete event with secrets redacted.
#[derive(Debug)]
struct RedactingWriter<W> {
    redactor: LogRedactor,
    output: W,
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        // An unwritable line is lost: on an error the subscriber would print to stderr as well,
        // and panic when the terminal is gone.
        let _lost = self
            .output
            .write_all(self.redactor.redact(&text).as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _lost = self.output.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::redact::Redactor;

    use super::*;

    #[test]
    fn log_line_redacts_current_and_earlier_secrets() {
        let secrets = LogRedactor::default();
        let write = |text: &str| {
            let mut line = RedactingWriter {
                redactor: secrets.clone(),
                output: Vec::new(),
            };
            line.write_all(text.as_bytes()).unwrap();
            String::from_utf8(line.output).unwrap()
        };
        assert_eq!(write("a hunter22 b\n"), "a hunter22 b\n");
        secrets.replace_current(&Redactor::new([("PASSWORD", "hunter22")]));
        assert_eq!(write("a hunter22 b\n"), "a ‹PASSWORD› b\n");
        // Servers of the previous configuration may still be shutting down.
        secrets.replace_current(&Redactor::new([("OTHER", "hunter33")]));
        assert_eq!(write("hunter22 hunter33"), "‹PASSWORD› ‹OTHER›");
        secrets.replace_current(&Redactor::default());
        assert_eq!(write("hunter22 hunter33"), "‹PASSWORD› ‹OTHER›");
        secrets.add_secret("ROTATED", "hunter44");
        assert_eq!(write("hunter44"), "‹ROTATED›");
    }

    #[test]
    fn unwritable_log_line_is_dropped() {
        let full: &mut [u8] = &mut [];
        let mut line = RedactingWriter {
            redactor: LogRedactor::default(),
            output: full,
        };
        line.write_all(b"more than there is room for\n").unwrap();
        line.flush().unwrap();
    }

    #[test]
    fn log_format_defaults_to_text() {
        assert_eq!(LogFormat::parse(Some("json")), LogFormat::Json);
        assert_eq!(LogFormat::parse(Some("xml")), LogFormat::Text);
        assert_eq!(LogFormat::parse(None), LogFormat::Text);
    }
}
