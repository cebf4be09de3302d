//! Forms that ask for secrets: what a person types into one passes through a client and a model,
//! so a server has to send the person to an address instead.
//!
//! A form is judged by the names, titles and formats of its fields, and, where it has a field for
//! free text, by its message and the descriptions of such fields as well.

mod letters;
mod phrases;

use std::borrow::Cow;

use bowline_wire::object;

use letters::words;

/// Parts of a name that mean a secret, wherever they stand.
const STEMS: [&str; 26] = [
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

/// Names that mean a secret where they stand alone or at the end.
const WORDS: [&str; 8] = ["token", "pwd", "pin", "otp", "totp", "ssn", "cvc", "2fa"];

/// Words before such a name that make it something else.
const HARMLESS: [&str; 6] = ["progress", "page", "next", "continuation", "cursor", "sync"];

/// How deep a form is looked at; the protocol has flat ones only.
const DEPTH_MAX: usize = 4;

/// Returns the property by which a form asks for a secret, or `message` where that does.
pub(crate) fn wanted(params: &[u8]) -> Option<Cow<'_, str>> {
    let schema = object::field(params, "requestedSchema").map(|at| at.of(params));
    if let Some(property) = schema.and_then(|schema| wanted_by(schema, DEPTH_MAX)) {
        return Some(property);
    }
    let takes_text = schema.is_none_or(|schema| takes_text(schema, DEPTH_MAX));
    let message = object::text(params, "message").filter(|_| takes_text)?;
    phrases::ask_for_secret(&message).then_some(Cow::Borrowed("message"))
}

fn wanted_by(schema: &[u8], depth: usize) -> Option<Cow<'_, str>> {
    let deeper = depth.checked_sub(1)?;
    let properties = object::field(schema, "properties")?.of(schema);
    object::fields(properties).find_map(|(name, at)| {
        let property = at.of(properties);
        let title = object::text(property, "title");
        let hidden = object::text(property, "format").is_some_and(|format| format == "password");
        let described = || {
            let about = object::text(property, "description")
                .into_iter()
                .chain(title.clone());
            is_free(property) && about.into_iter().any(|text| phrases::ask_for_secret(&text))
        };
        let named = means_secret(&name) || title.as_deref().is_some_and(means_secret);
        if hidden || named || described() {
            return Some(name);
        }
        wanted_by(property, deeper)
    })
}

/// Whether a form has a field for free text.
fn takes_text(schema: &[u8], depth: usize) -> bool {
    let Some(deeper) = depth.checked_sub(1) else {
        return false;
    };
    let properties = object::field(schema, "properties").map_or(&b"{}"[..], |at| at.of(schema));
    object::fields(properties).any(|(_, at)| {
        let property = at.of(properties);
        match object::field(property, "properties") {
            Some(_) => takes_text(property, deeper),
            None => is_free(property),
        }
    })
}

/// Whether a person can type something into a field that its server did not write.
fn is_free(property: &[u8]) -> bool {
    let chosen = ["enum", "oneOf", "const"].iter();
    let mut chosen = chosen.filter_map(|word| object::field(property, word));
    let kind = object::text(property, "type");
    let format = object::text(property, "format");
    chosen.next().is_none()
        && !matches!(kind.as_deref(), Some("boolean" | "array"))
        && !matches!(format.as_deref(), Some("date" | "date-time"))
}

/// Whether a name or title means a secret, however its words are joined and its letters written.
fn means_secret(name: &str) -> bool {
    words(name).into_iter().any(|words| named_by(&words))
}

fn named_by(words: &[String]) -> bool {
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

    /// A form with one text field of this name and description.
    fn asks(message: &str, name: &str, description: &str) -> bool {
        let form = serde_json::json!({"message": message, "requestedSchema": {
            "type": "object",
            "properties": {name: {"type": "string", "description": description}},
        }});
        wanted(form.to_string().as_bytes()).is_some()
    }

    #[test]
    fn sec_64_wording_of_a_form_is_judged() {
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
                asks(message, name, description),
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
            assert!(!asks(message, "value", ""), "{message}");
            assert!(!asks("m", "value", message), "{message}");
        }
        // Nothing can be typed into a box that is ticked, or chosen from a list.
        for field in [r#"{"type":"boolean"}"#, r#"{"type":"string","enum":["a"]}"#] {
            let form = format!(
                r#"{{"message":"Reset the password of bob?","requestedSchema":{{"properties":{{"ok":{field}}}}}}}"#
            );
            assert_eq!(wanted(form.as_bytes()), None, "{form}");
        }
    }
}
