//! Forms that ask for secrets: what a person types into one passes through a client and a model,
//! so a server has to send the person to an address instead.

use std::borrow::Cow;

use bowline_wire::object;

/// Parts of a name that mean a secret, wherever they stand.
const STEMS: [&str; 20] = [
    "password",
    "passwd",
    "passwort",
    "passphrase",
    "passcode",
    "secret",
    "credential",
    "apikey",
    "privatekey",
    "accesskey",
    "sshkey",
    "signingkey",
    "encryptionkey",
    "accesstoken",
    "authtoken",
    "bearertoken",
    "refreshtoken",
    "cvv",
    "cardnumber",
    "seedphrase",
];

/// Names that mean a secret where they stand alone or at the end.
const WORDS: [&str; 4] = ["token", "pwd", "pin", "otp"];

/// Words before such a name that make it something else.
const HARMLESS: [&str; 6] = ["progress", "page", "next", "continuation", "cursor", "sync"];

/// How deep a form is looked at; the protocol has flat ones only.
const DEPTH_MAX: usize = 4;

/// Returns the property by which a form asks for a secret.
pub(crate) fn wanted(params: &[u8]) -> Option<Cow<'_, str>> {
    let schema = object::field(params, "requestedSchema")?.of(params);
    wanted_by(schema, DEPTH_MAX)
}

fn wanted_by(schema: &[u8], depth: usize) -> Option<Cow<'_, str>> {
    let deeper = depth.checked_sub(1)?;
    let properties = object::field(schema, "properties")?.of(schema);
    object::fields(properties).find_map(|(name, at)| {
        let property = at.of(properties);
        let title = object::text(property, "title");
        let hidden = object::text(property, "format").is_some_and(|format| format == "password");
        let secret = hidden || means_secret(&name) || title.is_some_and(|t| means_secret(&t));
        if secret {
            return Some(name);
        }
        wanted_by(property, deeper)
    })
}

/// Whether a name or title means a secret, however its words are joined.
fn means_secret(name: &str) -> bool {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in name.chars() {
        // Without width: only there to hide a word.
        if matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}') {
            continue;
        }
        if !c.is_alphanumeric() || (c.is_uppercase() && after_lower) {
            words.push(String::new());
        }
        after_lower = c.is_lowercase();
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    let joined = words.concat();
    let mut backwards = words.iter().rev();
    let named = backwards.next();
    let named = named.is_some_and(|word| WORDS.contains(&word.as_str()));
    let before = backwards.next();
    // Digits do not part words.
    let harmless = before.is_some_and(|word| HARMLESS.iter().any(|known| word.ends_with(known)));
    let last = named && !harmless;
    last || STEMS.iter().any(|stem| joined.contains(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_however_they_are_written() {
        for secret in [
            "password",
            "Password",
            "user_password",
            "PASSWD",
            "newPassword",
            "pass_word",
            "pass\u{200b}word",
            "api_key",
            "API key",
            "apiKey",
            "x-api-key",
            "private key",
            "token",
            "access_token",
            "githubToken",
            "client_secret",
            "AWS Secret Access Key",
            "credentials",
            "One-time PIN",
            "cvv",
        ] {
            assert!(means_secret(secret), "{secret}");
        }
        for plain in [
            "username",
            "email",
            "max_tokens",
            "token_count",
            "key",
            "keyboard",
            "pinned",
            "spinning",
            "passenger",
            "compass",
            "name",
            "",
            "progressToken",
            "x-1progressToken",
            "next_page_token",
        ] {
            assert!(!means_secret(plain), "{plain}");
        }
    }

    #[test]
    fn a_form_asks_for_a_secret_by_name_title_or_format() {
        let form = |property: &str| {
            let schema = format!(r#"{{"type":"object","properties":{{"a":{{}},{property}}}}}"#);
            format!(r#"{{"message":"m","requestedSchema":{schema}}}"#)
        };
        for (property, name) in [
            (r#""password":{"type":"string"}"#, Some("password")),
            (r#""x":{"type":"string","title":"Your API key"}"#, Some("x")),
            (r#""x":{"type":"string","format":"password"}"#, Some("x")),
            (r#""pass\u0077ord":{}"#, Some("password")),
            (r#""x":{"properties":{"token":{}}}"#, Some("token")),
            (
                r#""x":{"type":"string","title":"Name","format":"email"}"#,
                None,
            ),
        ] {
            assert_eq!(
                wanted(form(property).as_bytes()).as_deref(),
                name,
                "{property}"
            );
        }
        assert_eq!(wanted(b"{}"), None);
    }
}
