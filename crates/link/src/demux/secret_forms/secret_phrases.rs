//! Distinguishes requests for a secret from sentences with only such a word.

use super::confusables::split_words;

/// Parts of a single word with the meaning of a secret in a sentence.
const STEMS: [&str; 17] = [
    "password",
    "passwd",
    "passwort",
    "passphrase",
    "passcode",
    "kennwort",
    "contrasena",
    "apikey",
    "privatekey",
    "accesskey",
    "secretkey",
    "accesstoken",
    "authtoken",
    "bearertoken",
    "seedphrase",
    "mnemonic",
    "idrsa",
];

/// Word sequences with the meaning of a secret. A plural `s` on the last word is ignored.
const PHRASES: [&str; 64] = [
    "access code",
    "access key",
    "access token",
    "api key",
    "api secret",
    "api token",
    "auth code",
    "auth token",
    "authentication code",
    "authenticator",
    "backup code",
    "bearer token",
    "card number",
    "client secret",
    "confirmation code we",
    "credentials",
    "credit card",
    "cvc",
    "cvv",
    "debit card",
    "digit code",
    "encryption key",
    "factor code",
    "github token",
    "id ed25519",
    "id rsa",
    "login code",
    "mfa code",
    "mot de passe",
    "one time code",
    "one time pin",
    "otp",
    "personal access token",
    "pin number",
    "private key",
    "pwd",
    "recovery code",
    "recovery key",
    "recovery phrase",
    "recovery word",
    "refresh token",
    "secret access",
    "secret key",
    "secret phrase",
    "secret recovery",
    "secret token",
    "secret value",
    "secret word",
    "security code",
    "seed phrase",
    "seed word",
    "senha",
    "session cookie",
    "session token",
    "shared secret",
    "signing key",
    "sms code",
    "social security",
    "ssh key",
    "ssn",
    "totp",
    "verification code",
    "your pin",
    "your secret",
];

/// Word sequences with digits or short forms.
const DIGIT_PHRASES: [&str; 3] = ["2fa", "2 factor", "tfa"];

/// Verbs for requesting typed input.
const REQUEST_VERBS: [&str; 12] = [
    "paste", "enter", "type", "provide", "give", "share", "send", "supply", "input", "tell",
    "insert", "submit",
];

/// Words before `token` for harmless tokens.
const HARMLESS_BEFORE_TOKEN: [&str; 8] = [
    "page",
    "next",
    "continuation",
    "cursor",
    "sync",
    "progress",
    "first",
    "last",
];

/// Words after a secret for a mere description.
const HARMLESS_AFTER_SECRET: [&str; 16] = [
    "manager", "managers", "policy", "policies", "length", "strength", "reset", "rotation",
    "expiry", "limit", "count", "budget", "usage", "size", "type", "name",
];

/// Whether a text asks for a secret, in any spelling and word separation.
pub(super) fn asks_for_secret(text: &str) -> bool {
    split_words(text)
        .into_iter()
        .any(|words| asks_by_words(&words))
}

fn asks_by_words(words: &[String]) -> bool {
    let is_about = |at: usize| {
        words
            .get(at)
            .is_some_and(|word| HARMLESS_AFTER_SECRET.contains(&word.as_str()))
    };
    let stem = words.iter().enumerate().any(|(at, word)| {
        let stem = STEMS.iter().any(|stem| word.contains(stem));
        stem && !is_about(at + 1)
    });
    let has_request_verb = words
        .iter()
        .any(|word| REQUEST_VERBS.contains(&word.as_str()));
    let token = words.iter().enumerate().any(|(at, word)| {
        let before = at.checked_sub(1).and_then(|at| words.get(at));
        let harmless = before.is_some_and(|word| HARMLESS_BEFORE_TOKEN.contains(&word.as_str()));
        word == "token" && has_request_verb && !harmless && !is_about(at + 1)
    });
    stem || token
        || PHRASES
            .iter()
            .chain(&DIGIT_PHRASES)
            .any(|phrase| contains_phrase(words, phrase, &is_about))
}

fn contains_phrase(words: &[String], phrase: &str, is_about: &impl Fn(usize) -> bool) -> bool {
    let count = phrase.split(' ').count();
    words.windows(count).enumerate().any(|(at, row)| {
        let mut pairs = row.iter().zip(phrase.split(' ')).enumerate();
        let same = pairs.all(|(nth, (word, want))| {
            word == want || nth + 1 == count && word.strip_suffix('s') == Some(want)
        });
        same && !is_about(at + count)
    })
}
