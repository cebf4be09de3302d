//! Detects elicitation forms that ask for secrets. Form input passes through a client and a model,
//! so a server must send the user to a URL instead.
//!
//! A form is judged by the names, titles and formats of the fields. If a field takes free text, the
//! message and the descriptions of such fields are judged as well.

mod confusables;
mod secret_phrases;

use std::borrow::Cow;

use bowline_wire::object;

use confusables::split_words;

/// Secret parts of a name in any position.
const SECRET_STEMS: [&str; 26] = [
    "password",
    "passwd",
    "passwort",
    "passphrase",
    "passcode",
    "kennwort",
    "contrasena",
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
    "idrsa",
    "mnemonic",
    "socialsecurity",
    "recoverycode",
];

/// Secret names alone or at the end.
const SECRET_WORDS: [&str; 8] = ["token", "pwd", "pin", "otp", "totp", "ssn", "cvc", "2fa"];

/// Words before such a name for harmless names.
const HARMLESS_PREFIXES: [&str; 6] = ["progress", "page", "next", "continuation", "cursor", "sync"];

/// Examined nesting depth of a form; MCP forms are flat.
const DEPTH_MAX: usize = 4;

/// Returns the property with a request for a secret, or `message` if the message text does.
pub(crate) fn find_secret_property(params: &[u8]) -> Option<Cow<'_, str>> {
    let schema = object::field(params, "requestedSchema").map(|at| at.slice(params));
    if let Some(property) = schema.and_then(|schema| find_in_schema(schema, DEPTH_MAX)) {
        return Some(property);
    }
    let takes_text = schema.is_none_or(|schema| has_text_field(schema, DEPTH_MAX));
    let message = object::text_field(params, "message").filter(|_| takes_text)?;
    secret_phrases::asks_for_secret(&message).then_some(Cow::Borrowed("message"))
}

fn find_in_schema(schema: &[u8], depth: usize) -> Option<Cow<'_, str>> {
    let deeper = depth.checked_sub(1)?;
    let properties = object::field(schema, "properties")?.slice(schema);
    object::fields(properties).find_map(|(name, at)| {
        let property = at.slice(properties);
        let title = object::text_field(property, "title");
        let hidden =
            object::text_field(property, "format").is_some_and(|format| format == "password");
        let described = || {
            let about = object::text_field(property, "description")
                .into_iter()
                .chain(title.clone());
            is_free_text(property)
                && about
                    .into_iter()
                    .any(|text| secret_phrases::asks_for_secret(&text))
        };
        let named = is_secret_name(&name) || title.as_deref().is_some_and(is_secret_name);
        if hidden || named || described() {
            return Some(name);
        }
        find_in_schema(property, deeper)
    })
}

/// Whether a form has a field for free text.
fn has_text_field(schema: &[u8], depth: usize) -> bool {
    let Some(deeper) = depth.checked_sub(1) else {
        return false;
    };
    let properties = object::field(schema, "properties").map_or(&b"{}"[..], |at| at.slice(schema));
    object::fields(properties).any(|(_, at)| {
        let property = at.slice(properties);
        match object::field(property, "properties") {
            Some(_) => has_text_field(property, deeper),
            None => is_free_text(property),
        }
    })
}

/// Whether a field takes free text.
fn is_free_text(property: &[u8]) -> bool {
    let chosen = ["enum", "oneOf", "const"].iter();
    let mut chosen = chosen.filter_map(|word| object::field(property, word));
    let kind = object::text_field(property, "type");
    let format = object::text_field(property, "format");
    chosen.next().is_none()
        && !matches!(kind.as_deref(), Some("boolean" | "array"))
        && !matches!(format.as_deref(), Some("date" | "date-time"))
}

/// Whether a name or title means a secret, in any spelling and word separation.
fn is_secret_name(name: &str) -> bool {
    split_words(name)
        .into_iter()
        .any(|words| has_secret_words(&words))
}

fn has_secret_words(words: &[String]) -> bool {
    let joined = words.concat();
    let mut backwards = words.iter().rev();
    let named = backwards.next();
    let named = named.is_some_and(|word| SECRET_WORDS.contains(&word.as_str()));
    let before = backwards.next();
    // Digits do not separate words.
    let harmless = before.is_some_and(|word| {
        HARMLESS_PREFIXES
            .iter()
            .any(|prefix| word.ends_with(prefix))
    });
    let last = named && !harmless;
    last || SECRET_STEMS.iter().any(|stem| joined.contains(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_match_in_every_spelling() {
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
            assert!(is_secret_name(secret), "{secret}");
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
            assert!(!is_secret_name(plain), "{plain}");
        }
    }

    #[test]
    fn secret_form_found_by_name_title_format() {
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
                find_secret_property(form(property).as_bytes()).as_deref(),
                name,
                "{property}"
            );
        }
        assert_eq!(find_secret_property(b"{}"), None);
    }

    /// Whether a form with a text field of this name and description asks for a secret.
    fn form_asks_for_secret(message: &str, name: &str, description: &str) -> bool {
        let form = serde_json::json!({"message": message, "requestedSchema": {
            "type": "object",
            "properties": {name: {"type": "string", "description": description}},
        }});
        find_secret_property(form.to_string().as_bytes()).is_some()
    }

    #[test]
    fn sec_64_secret_wording_is_found() {
        for (message, name, description) in [
            (
                "Please paste your GitHub personal access token",
                "value",
                "",
            ),
            ("m", "value", "Your AWS secret access key"),
            ("m", "p\u{430}ssword", ""),
            ("m", "p4ssw0rd", ""),
            ("Please enter your p@ssw0rd", "value", ""),
            ("Paste the contents of ~/.ssh/id_rsa", "value", ""),
            ("m", "id_rsa", ""),
            ("Enter your 2FA code", "code", ""),
            (
                "Type the 6-digit code from your authenticator app",
                "value",
                "",
            ),
            ("m", "value", "The 12 recovery words of your wallet"),
            ("We need your seed phrase to go on", "value", ""),
            ("m", "ssn", ""),
            ("What is your social security number?", "value", ""),
            ("Give me the one-time password", "value", ""),
            (
                "Your \u{ff50}\u{ff41}\u{ff53}\u{ff53}\u{ff57}\u{ff4f}\u{ff52}\u{ff44}, please",
                "v",
                "",
            ),
            ("p a s s w o r d", "v", ""),
            ("pass\u{200b}word?", "v", ""),
            ("Tell me the API-key of your account", "v", ""),
            ("m", "v", "Bank card number and CVC"),
            ("Enter your PIN", "v", ""),
            ("Enter a token to sign in", "v", ""),
            ("Your \u{440}\u{430}ssphrase", "v", ""),
        ] {
            assert!(
                form_asks_for_secret(message, name, description),
                "{message} {name} {description}"
            );
        }
    }

    #[test]
    fn sec_64_ordinary_questions_pass() {
        for message in [
            "What is your name?",
            "Which file should I delete?",
            "How many tokens may the answer have?",
            "What is the token limit for this run?",
            "Give the next page token",
            "Which key on the keyboard opens the menu?",
            "Which primary key does the table have?",
            "Enter the issue key, such as ABC-123",
            "What is the postal code?",
            "Paste the code you want me to review",
            "Which GPIO pin is the lamp on?",
            "Pin this message to the channel?",
            "Which access level should the guest have?",
            "What should the secret santa list be called?",
            "Which password manager do you use?",
            "How long should a password reset link be valid?",
            "Describe the seed data for the tests",
            "Which words should be highlighted?",
            "Which branch should I recover?",
            "What is the security group called?",
            "Which account should the invoice go to?",
            "Enter the number of the gift card aisle",
            "Which private repository is meant?",
            "Enter the error code that you saw",
            "What is 2 + 2?",
            "At what time should I call you? 10:30 is free",
            "Choose a passenger and a compass course",
            "\u{41a}\u{430}\u{43a} \u{432}\u{430}\u{441} \u{437}\u{43e}\u{432}\u{443}\u{442}?",
        ] {
            assert!(!form_asks_for_secret(message, "value", ""), "{message}");
            assert!(!form_asks_for_secret("m", "value", message), "{message}");
        }
        // Checkboxes and choices take no typed text.
        for field in [r#"{"type":"boolean"}"#, r#"{"type":"string","enum":["a"]}"#] {
            let form = format!(
                r#"{{"message":"Reset the password of bob?","requestedSchema":{{"properties":{{"ok":{field}}}}}}}"#
            );
            assert_eq!(find_secret_property(form.as_bytes()), None, "{form}");
        }
    }
}
