//! What a server's entry holds that nobody should read in a log, a status or an error.

use std::fmt;
use std::path::{Component, Path};

use bowline_core::redact::Redactor;

/// Variables whose values say nothing that must be hidden.
const HARMLESS: [&str; 24] = [
    "CI",
    "COLORTERM",
    "DEBUG",
    "EDITOR",
    "ENV",
    "FORCE_COLOR",
    "HOME",
    "HOST",
    "HOSTNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "LOG_LEVEL",
    "NODE_ENV",
    "NO_COLOR",
    "PATH",
    "PORT",
    "PWD",
    "RUST_LOG",
    "SHELL",
    "TERM",
    "TZ",
    "USER",
];

/// Parts of a name that say that its value is a secret.
const TELLING: [&str; 11] = [
    "apikey",
    "auth",
    "bearer",
    "cookie",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "secret",
    "session",
    "token",
];

/// Words that say so when they stand alone in a name.
const TELLING_WORDS: [&str; 5] = ["dsn", "key", "pass", "pat", "pwd"];

/// Options after which a header of an HTTP request stands.
const HEADER_OPTIONS: [&str; 2] = ["--header", "-H"];

/// Secrets of one server, each with a label that may be shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(Vec<Held>);

/// A value that nobody should read.
#[derive(Clone, PartialEq, Eq)]
struct Held {
    label: String,
    value: String,
    kind: Kind,
}

/// How sure it is that a value is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The file says so: it comes from a secret or a file, or its name tells.
    Known,
    /// It is not plainly harmless. Logs are kept free of it; results are not, because it may be
    /// an ordinary word.
    Guessed,
}

// The labels are for eyes.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.0.iter().map(|held| &held.label);
        f.debug_set().entries(labels).finish()
    }
}

impl Secrets {
    /// Returns what takes them out of a text.
    #[must_use]
    pub fn redactor(&self) -> Redactor {
        let pairs = self.0.iter();
        Redactor::new(pairs.map(|held| (held.label.as_str(), held.value.as_str())))
    }

    /// Has others know them too.
    pub(crate) fn teach(&self, mut learn: impl FnMut(&str, &str)) {
        for held in &self.0 {
            learn(&held.label, &held.value);
        }
    }

    /// Returns those that are surely secrets, which results are cleaned of.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&str, &str)> {
        let known = self.0.iter().filter(|held| held.kind == Kind::Known);
        known.map(|held| (held.label.as_str(), held.value.as_str()))
    }

    fn add(&mut self, label: &str, secret: &str, kind: Kind) {
        if !secret.is_empty() {
            self.0.push(Held {
                label: label.to_owned(),
                value: secret.to_owned(),
                kind,
            });
        }
    }

    /// Notes what came out of `${reference}`.
    pub(crate) fn expanded(&mut self, label: &str, reference: &str, value: &str) {
        let name = reference.split(":-").next().unwrap_or_default();
        // Whatever has a file of its own, or a name among secrets, is meant to be hidden.
        let is_kept = reference.starts_with("file:") || reference.starts_with("secret:");
        if is_kept || is_worth_hiding(name, value) {
            let kind = if is_kept { Kind::Known } else { kind_of(name) };
            self.add(label, value, kind);
        }
    }

    /// Notes a variable of the child.
    pub(super) fn variable(&mut self, name: &str, value: &str) {
        let label = format!("env {name}");
        if is_worth_hiding(name, value) {
            self.add(&label, value, kind_of(name));
        }
        self.inside(&label, value);
    }

    /// Notes a header, whole and without the word before its credential.
    pub(crate) fn header(&mut self, name: &str, value: &str) {
        let label = format!("header {name}");
        let kind = kind_of(name);
        self.add(&label, value, kind);
        if let Some((_scheme, credential)) = value.trim().split_once(' ') {
            self.add(&label, credential.trim(), kind);
        }
    }

    /// Notes the values of an address's query.
    pub(super) fn query(&mut self, url: &str) {
        self.inside("url", url);
        let query = url.split_once('?').map_or("", |(_, query)| query);
        for pair in query.split('#').next().unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or(("", pair));
            self.add("url", value, kind_of(name));
            if let Some(decoded) = decode(value) {
                self.add("url", &decoded, kind_of(name));
            }
        }
    }

    /// Notes those arguments that a name or their own form makes secret.
    pub(super) fn args(&mut self, args: &[String]) {
        let mut before = "";
        for (number, arg) in (1..).zip(args) {
            let label = format!("argument {number}");
            if HEADER_OPTIONS.contains(&before) {
                let (name, value) = arg.split_once(':').unwrap_or(("", arg));
                self.header_argument(&label, name, value.trim());
            } else if before.starts_with('-') && !before.contains('=') && is_telling(before) {
                self.add(&label, arg, Kind::Known);
            } else if let Some((name, value)) = arg.split_once('=')
                && is_telling(name)
                && !name.contains("://")
            {
                self.add(&label, value, Kind::Known);
            }
            self.inside(&label, arg);
            before = arg;
        }
    }

    fn header_argument(&mut self, label: &str, name: &str, value: &str) {
        let harmless = ["accept", "content-type", "user-agent"];
        if harmless.contains(&name.trim().to_ascii_lowercase().as_str()) {
            return;
        }
        self.add(label, value, kind_of(name));
        if let Some((_scheme, credential)) = value.split_once(' ') {
            self.add(label, credential.trim(), kind_of(name));
        }
    }

    /// Notes the password and the telling query values of an address inside a value.
    fn inside(&mut self, label: &str, value: &str) {
        let Some((_, rest)) = value.split_once("://") else {
            return;
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if let Some((user, _host)) = authority.rsplit_once('@') {
            self.add(label, user, Kind::Guessed);
            let password = user.split_once(':').map_or(user, |(_, password)| password);
            self.add(label, password, Kind::Known);
            if let Some(decoded) = decode(password) {
                self.add(label, &decoded, Kind::Known);
            }
        }
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            if is_telling(name) {
                self.add(label, value, Kind::Known);
            }
        }
    }
}

/// A name that tells makes its value surely a secret.
fn kind_of(name: &str) -> Kind {
    match is_telling(name) {
        true => Kind::Known,
        false => Kind::Guessed,
    }
}

/// Whether the value of a variable should be hidden: everything that is not plainly harmless.
pub(super) fn is_worth_hiding(name: &str, value: &str) -> bool {
    if is_telling(name) {
        return true;
    }
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit())
        || ["true", "false"].contains(&value.to_ascii_lowercase().as_str())
        || is_path(value);
    !is_plain && !HARMLESS.contains(&name)
}

/// Whether a name says that its value is a secret.
pub(super) fn is_telling(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase();
    TELLING.iter().any(|part| name.contains(part))
        || name
            .split(|sign: char| !sign.is_ascii_alphanumeric())
            .any(|word| TELLING_WORDS.contains(&word))
}

/// Whether a text is an absolute path. A secret may begin with a slash as well, so the first
/// directory must be there.
fn is_path(text: &str) -> bool {
    let mut parts = Path::new(text).components();
    match (parts.next(), parts.next()) {
        (Some(Component::RootDir), None) => true,
        (Some(Component::RootDir), Some(Component::Normal(first))) => {
            Path::new("/").join(first).is_dir()
        }
        _ => false,
    }
}

/// Returns a text whose `%XX` are undone, if there are any.
fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| first == b'%');
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(first));
        let skip = if byte.is_some() { 2 } else { 0 };
        rest = after.get(skip..).unwrap_or_default();
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(note: impl Fn(&mut Secrets), expected: &[(&str, &str)]) {
        let mut secrets = Secrets::default();
        note(&mut secrets);
        let found: Vec<_> = secrets
            .0
            .iter()
            .map(|held| (held.label.as_str(), held.value.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn variables_are_secrets_unless_they_are_plainly_none() {
        for (name, value) in [
            ("RETRIES", "100000"),
            ("VERBOSE", "TRUE"),
            ("ROOT", "/tmp/some/where"),
            ("NODE_ENV", "production"),
            ("LOG_LEVEL", "warning"),
        ] {
            check(|secrets| secrets.variable(name, value), &[]);
        }
        for (name, value) in [
            ("WHATEVER", "swordfish"),
            ("API_KEY", "12345678"),
            ("KEY", "/q2Zx+93/no/such/dir"),
            ("X", "/q2Zx+93=="),
        ] {
            let label = format!("env {name}");
            check(
                |secrets| secrets.variable(name, value),
                &[(label.as_str(), value)],
            );
        }
        check(
            |secrets| secrets.variable("PATH", "postgres://me:s3cr%65t@db/x"),
            &[
                ("env PATH", "me:s3cr%65t"),
                ("env PATH", "s3cr%65t"),
                ("env PATH", "s3cret"),
            ],
        );
    }

    #[test]
    fn arguments_are_secrets_where_a_name_says_so() {
        let args = "run --token abc --api-key=def --verbose x API_KEY=ghi --header A:B --key jkl \
                    -H Accept:json https://u:pw@h/?access_token=mno";
        let args: Vec<_> = args.split_whitespace().map(str::to_owned).collect();
        check(
            |secrets| secrets.args(&args),
            &[
                ("argument 3", "abc"),
                ("argument 4", "def"),
                ("argument 7", "ghi"),
                ("argument 9", "B"),
                ("argument 11", "jkl"),
                ("argument 14", "u:pw"),
                ("argument 14", "pw"),
                ("argument 14", "mno"),
            ],
        );
    }

    #[test]
    fn headers_and_queries_are_secrets() {
        check(
            |secrets| secrets.header("Authorization", "Bearer abc"),
            &[
                ("header Authorization", "Bearer abc"),
                ("header Authorization", "abc"),
            ],
        );
        check(
            |secrets| secrets.query("https://h/p?a=one&two%20x#f"),
            &[("url", "one"), ("url", "two%20x"), ("url", "two x")],
        );
    }

    #[test]
    fn what_came_out_of_a_reference_is_a_secret_unless_it_is_a_path() {
        check(
            |secrets| secrets.expanded("argument 1", "HOME", "/tmp"),
            &[],
        );
        check(
            |secrets| {
                secrets.expanded("argument 1", "TEAM:-red", "blue-team");
                secrets.expanded("header x", "file:key", "/tmp");
            },
            &[("argument 1", "blue-team"), ("header x", "/tmp")],
        );
    }

    #[test]
    fn debug_output_shows_labels_only() {
        let mut secrets = Secrets::default();
        secrets.variable("API_KEY", "hunter2");
        let shown = format!("{secrets:?}");
        assert!(
            shown.contains("env API_KEY") && !shown.contains("hunter2"),
            "{shown}"
        );
        assert_eq!(secrets.redactor().clean("is hunter2"), "is ‹env API_KEY›");
    }
}
