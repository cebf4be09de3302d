//! Secrets found in a server's section, for redaction in logs, status and errors.

use std::fmt;
use std::path::{Component, Path};

use bowline_core::redact::Redactor;

/// Variables with harmless values.
const HARMLESS_VARIABLES: [&str; 24] = [
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

/// Name parts that indicate a secret value.
const SECRET_NAME_PARTS: [&str; 11] = [
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

/// Whole words of a name that indicate a secret value.
const SECRET_NAME_WORDS: [&str; 5] = ["dsn", "key", "pass", "pat", "pwd"];

/// Command-line options followed by an HTTP header.
const HEADER_OPTIONS: [&str; 2] = ["--header", "-H"];

/// Secrets of one server, each with a displayable label.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ServerSecrets(Vec<ServerSecret>);

/// A secret value.
#[derive(Clone, PartialEq, Eq)]
struct ServerSecret {
    label: String,
    value: String,
    certainty: SecretCertainty,
}

/// Certainty that a value is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecretCertainty {
    /// The value comes from a secret or a file, or has a telling name.
    Certain,
    /// The value is not plainly harmless. Redacted in logs, but not in results, since it may be an
    /// ordinary word.
    Guessed,
}

// Debug shows labels only.
impl fmt::Debug for ServerSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.0.iter().map(|secret| &secret.label);
        f.debug_set().entries(labels).finish()
    }
}

impl ServerSecrets {
    /// Returns a redactor for all secrets.
    #[must_use]
    pub fn redactor(&self) -> Redactor {
        let pairs = self.0.iter();
        Redactor::new(pairs.map(|secret| (secret.label.as_str(), secret.value.as_str())))
    }

    /// Passes all secrets to `learn`.
    pub fn for_each_secret(&self, mut learn: impl FnMut(&str, &str)) {
        for secret in &self.0 {
            learn(&secret.label, &secret.value);
        }
    }

    /// Returns the certain secrets, redacted in results.
    pub fn certain_secrets(&self) -> impl Iterator<Item = (&str, &str)> {
        let certain = self
            .0
            .iter()
            .filter(|secret| secret.certainty == SecretCertainty::Certain);
        certain.map(|secret| (secret.label.as_str(), secret.value.as_str()))
    }

    fn push_secret(&mut self, label: &str, secret: &str, kind: SecretCertainty) {
        if !secret.is_empty() {
            self.0.push(ServerSecret {
                label: label.to_owned(),
                value: secret.to_owned(),
                certainty: kind,
            });
        }
    }

    /// Records the expanded value of `${reference}`.
    pub fn record_expansion(&mut self, label: &str, reference: &str, value: &str) {
        let name = reference.split(":-").next().unwrap_or_default();
        // A value from a file or a secret is always meant to be hidden.
        let is_secret_source = reference.starts_with("file:") || reference.starts_with("secret:");
        if is_secret_source || should_hide_value(name, value) {
            let kind = if is_secret_source {
                SecretCertainty::Certain
            } else {
                certainty_of_name(name)
            };
            self.push_secret(label, value, kind);
        }
    }

    /// Records an environment variable of the child.
    pub(super) fn record_variable(&mut self, name: &str, value: &str) {
        let label = format!("env {name}");
        if should_hide_value(name, value) {
            self.push_secret(&label, value, certainty_of_name(name));
        }
        self.record_embedded_url(&label, value);
    }

    /// Records a header value, with and without its auth scheme.
    pub fn record_header(&mut self, name: &str, value: &str) {
        let label = format!("header {name}");
        let kind = certainty_of_name(name);
        self.push_secret(&label, value, kind);
        if let Some((_scheme, credential)) = value.trim().split_once(' ') {
            self.push_secret(&label, credential.trim(), kind);
        }
    }

    /// Records the query values of a URL.
    pub(super) fn record_query(&mut self, url: &str) {
        self.record_embedded_url("url", url);
        let query = url.split_once('?').map_or("", |(_, query)| query);
        for pair in query.split('#').next().unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or(("", pair));
            self.push_secret("url", value, certainty_of_name(name));
            if let Some(decoded) = percent_decode(value) {
                self.push_secret("url", &decoded, certainty_of_name(name));
            }
        }
    }

    /// Records arguments that are secret by their name or form.
    pub(super) fn record_arguments(&mut self, args: &[String]) {
        let mut before = "";
        for (number, arg) in (1..).zip(args) {
            let label = format!("argument {number}");
            if HEADER_OPTIONS.contains(&before) {
                let (name, value) = arg.split_once(':').unwrap_or(("", arg));
                self.record_header_argument(&label, name, value.trim());
            } else if before.starts_with('-') && !before.contains('=') && has_secret_word(before) {
                self.push_secret(&label, arg, SecretCertainty::Certain);
            } else if let Some((name, value)) = arg.split_once('=')
                && has_secret_word(name)
                && !name.contains("://")
            {
                self.push_secret(&label, value, SecretCertainty::Certain);
            }
            self.record_embedded_url(&label, arg);
            before = arg;
        }
    }

    fn record_header_argument(&mut self, label: &str, name: &str, value: &str) {
        let harmless = ["accept", "content-type", "user-agent"];
        if harmless.contains(&name.trim().to_ascii_lowercase().as_str()) {
            return;
        }
        self.push_secret(label, value, certainty_of_name(name));
        if let Some((_scheme, credential)) = value.split_once(' ') {
            self.push_secret(label, credential.trim(), certainty_of_name(name));
        }
    }

    /// Records the password and telling query values of a URL inside a value.
    fn record_embedded_url(&mut self, label: &str, value: &str) {
        let Some((_, rest)) = value.split_once("://") else {
            return;
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if let Some((user, _host)) = authority.rsplit_once('@') {
            self.push_secret(label, user, SecretCertainty::Guessed);
            let password = user.split_once(':').map_or(user, |(_, password)| password);
            self.push_secret(label, password, SecretCertainty::Certain);
            if let Some(decoded) = percent_decode(password) {
                self.push_secret(label, &decoded, SecretCertainty::Certain);
            }
        }
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            if has_secret_word(name) {
                self.push_secret(label, value, SecretCertainty::Certain);
            }
        }
    }
}

/// Classifies a value by its name: a telling name makes the value a certain secret.
fn certainty_of_name(name: &str) -> SecretCertainty {
    match has_secret_word(name) {
        true => SecretCertainty::Certain,
        false => SecretCertainty::Guessed,
    }
}

/// Returns whether a variable's value should be hidden: any value not plainly harmless.
pub(super) fn should_hide_value(name: &str, value: &str) -> bool {
    if has_secret_word(name) {
        return true;
    }
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit())
        || ["true", "false"].contains(&value.to_ascii_lowercase().as_str())
        || is_path(value);
    !is_plain && !HARMLESS_VARIABLES.contains(&name)
}

/// Returns whether a name indicates a secret value.
pub(super) fn has_secret_word(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase();
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
        || name
            .split(|sign: char| !sign.is_ascii_alphanumeric())
            .any(|word| SECRET_NAME_WORDS.contains(&word))
}

/// Returns whether a text is an absolute path. Secrets may start with a slash too, so the first
/// directory must exist.
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

/// Decodes `%XX` escapes; `None` for a text without any.
fn percent_decode(text: &str) -> Option<String> {
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

    fn assert_secrets(note: impl Fn(&mut ServerSecrets), expected: &[(&str, &str)]) {
        let mut secrets = ServerSecrets::default();
        note(&mut secrets);
        let found: Vec<_> = secrets
            .0
            .iter()
            .map(|held| (held.label.as_str(), held.value.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn variables_are_secret_unless_plainly_harmless() {
        for (name, value) in [
            ("RETRIES", "100000"),
            ("VERBOSE", "TRUE"),
            ("ROOT", "/tmp/some/where"),
            ("NODE_ENV", "production"),
            ("LOG_LEVEL", "warning"),
        ] {
            assert_secrets(|secrets| secrets.record_variable(name, value), &[]);
        }
        for (name, value) in [
            ("WHATEVER", "swordfish"),
            ("API_KEY", "12345678"),
            ("KEY", "/q2Zx+93/no/such/dir"),
            ("X", "/q2Zx+93=="),
        ] {
            let label = format!("env {name}");
            assert_secrets(
                |secrets| secrets.record_variable(name, value),
                &[(label.as_str(), value)],
            );
        }
        assert_secrets(
            |secrets| secrets.record_variable("PATH", "postgres://me:s3cr%65t@db/x"),
            &[
                ("env PATH", "me:s3cr%65t"),
                ("env PATH", "s3cr%65t"),
                ("env PATH", "s3cret"),
            ],
        );
    }

    #[test]
    fn arguments_with_secret_names_are_secret() {
        let args = "run --token abc --api-key=def --verbose x API_KEY=ghi --header A:B --key jkl \
                    -H Accept:json https://u:pw@h/?access_token=mno";
        let args: Vec<_> = args.split_whitespace().map(str::to_owned).collect();
        assert_secrets(
            |secrets| secrets.record_arguments(&args),
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
    fn headers_and_query_values_are_secret() {
        assert_secrets(
            |secrets| secrets.record_header("Authorization", "Bearer abc"),
            &[
                ("header Authorization", "Bearer abc"),
                ("header Authorization", "abc"),
            ],
        );
        assert_secrets(
            |secrets| secrets.record_query("https://h/p?a=one&two%20x#f"),
            &[("url", "one"), ("url", "two%20x"), ("url", "two x")],
        );
    }

    #[test]
    fn expanded_reference_is_secret_unless_path() {
        assert_secrets(
            |secrets| secrets.record_expansion("argument 1", "HOME", "/tmp"),
            &[],
        );
        assert_secrets(
            |secrets| {
                secrets.record_expansion("argument 1", "TEAM:-red", "blue-team");
                secrets.record_expansion("header x", "file:key", "/tmp");
            },
            &[("argument 1", "blue-team"), ("header x", "/tmp")],
        );
    }

    #[test]
    fn debug_output_shows_labels_only() {
        let mut secrets = ServerSecrets::default();
        secrets.record_variable("API_KEY", "hunter2");
        let shown = format!("{secrets:?}");
        assert!(
            shown.contains("env API_KEY") && !shown.contains("hunter2"),
            "{shown}"
        );
        assert_eq!(
            secrets.redactor().redact_text("is hunter2"),
            "is ‹env API_KEY›"
        );
    }
}
