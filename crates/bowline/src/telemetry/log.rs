//! Log lines on stderr, each cleaned of secrets before it is written.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bowline_core::redact::Redactor;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::registry::LookupSpan;

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object for each line.
    Json,
}

impl Format {
    /// Returns the format of this name; text where it is none.
    #[must_use]
    pub fn named(name: Option<&str>) -> Self {
        match name {
            Some("json") => Self::Json,
            Some(_) | None => Self::Text,
        }
    }
}

/// What must not be shown: the secrets of the configuration in force, and those that were in use
/// before them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Those of the configuration in force.
    latest: ArcSwap<Redactor>,
    /// Those that were learned while it is in force, and those of configurations before it, whose
    /// servers may still be going down. Of too many the oldest are forgotten.
    others: Redactor,
}

impl Secrets {
    /// Takes secrets out of a text.
    #[must_use]
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.0.latest.load().clean(text) {
            Cow::Borrowed(text) => self.0.others.clean(text),
            Cow::Owned(text) => Cow::Owned(self.0.others.clean(&text).into_owned()),
        }
    }

    /// Knows these from now on; those known so far are not forgotten at once.
    pub fn replace(&self, latest: Redactor) {
        let before = self.0.latest.load();
        before.teach(&self.0.others);
        self.0.latest.store(Arc::new(latest));
    }

    /// Knows one more from now on.
    pub fn learn(&self, label: &str, secret: &str) {
        self.0.others.learn(label, secret);
    }
}

/// Returns the layer that writes lines.
pub(super) fn layer<S>(format: Format, secrets: Secrets) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Cleaned(secrets))
        .with_ansi(false);
    match format {
        Format::Text => Box::new(lines),
        Format::Json => Box::new(lines.json()),
    }
}

/// Makes writers that clean what passes through them.
#[derive(Clone, Debug)]
struct Cleaned(Secrets);

impl<'a> MakeWriter<'a> for Cleaned {
    type Writer = Line<io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        Line {
            secrets: self.0.clone(),
            to: io::stderr(),
        }
    }
}

/// Writes one event, which comes whole.
#[derive(Debug)]
struct Line<W> {
    secrets: Secrets,
    to: W,
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        // A line that cannot be written is lost: of an error the subscriber would tell on stderr
        // as well, and panic where the terminal is gone.
        let _lost = self.to.write_all(self.secrets.clean(&text).as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _lost = self.to.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_without_what_is_secret_at_that_moment() {
        let secrets = Secrets::default();
        let write = |text: &str| {
            let mut line = Line {
                secrets: secrets.clone(),
                to: Vec::new(),
            };
            line.write_all(text.as_bytes()).unwrap();
            String::from_utf8(line.to).unwrap()
        };
        assert_eq!(write("a hunter22 b\n"), "a hunter22 b\n");
        secrets.replace(Redactor::new([("PASSWORD", "hunter22")]));
        assert_eq!(write("a hunter22 b\n"), "a ‹PASSWORD› b\n");
        // Servers of the configuration before this one may still be going down.
        secrets.replace(Redactor::new([("OTHER", "hunter33")]));
        assert_eq!(write("hunter22 hunter33"), "‹PASSWORD› ‹OTHER›");
        secrets.replace(Redactor::default());
        assert_eq!(write("hunter22 hunter33"), "‹PASSWORD› ‹OTHER›");
        secrets.learn("ROTATED", "hunter44");
        assert_eq!(write("hunter44"), "‹ROTATED›");
    }

    #[test]
    fn line_that_cannot_be_written_is_dropped() {
        let full: &mut [u8] = &mut [];
        let mut line = Line {
            secrets: Secrets::default(),
            to: full,
        };
        line.write_all(b"more than there is room for\n").unwrap();
        line.flush().unwrap();
    }

    #[test]
    fn the_format_is_text_unless_json_is_asked_for() {
        assert_eq!(Format::named(Some("json")), Format::Json);
        assert_eq!(Format::named(Some("xml")), Format::Text);
        assert_eq!(Format::named(None), Format::Text);
    }
}
