//! Sentences that ask for a secret, as opposed to those that only have such a word in them.

use super::letters::words;

/// Parts of one word that mean a secret in a sentence as well.
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

/// Words in a row that mean a secret. An `s` at the end of the last changes nothing.
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

/// More of them, with digits.
const CODES: [&str; 3] = ["2fa", "2 factor", "tfa"];

/// Words that ask somebody to type something.
const ASKING: [&str; 12] = [
    "paste", "enter", "type", "provide", "give", "share", "send", "supply", "input", "tell",
    "insert", "submit",
];

/// Words before `token` that make it no secret.
const TOKENS_BEFORE: [&str; 8] = [
    "page",
    "next",
    "continuation",
    "cursor",
    "sync",
    "progress",
    "first",
    "last",
];

/// Words after a secret that make it something about one.
const AFTER: [&str; 16] = [
    "manager", "managers", "policy", "policies", "length", "strength", "reset", "rotation",
    "expiry", "limit", "count", "budget", "usage", "size", "type", "name",
];

/// Whether a text asks for a secret, however its words are joined and its letters written.
pub(super) fn ask_for_secret(text: &str) -> bool {
    words(text).into_iter().any(|words| by_words(&words))
}

fn by_words(words: &[String]) -> bool {
    let is_about = |at: usize| {
        words
            .get(at)
            .is_some_and(|word| AFTER.contains(&word.as_str()))
    };
    let stem = words.iter().enumerate().any(|(at, word)| {
        let stem = STEMS.iter().any(|stem| word.contains(stem));
        stem && !is_about(at + 1)
    });
    let asks = words.iter().any(|word| ASKING.contains(&word.as_str()));
    let token = words.iter().enumerate().any(|(at, word)| {
        let before = at.checked_sub(1).and_then(|at| words.get(at));
        let harmless = before.is_some_and(|word| TOKENS_BEFORE.contains(&word.as_str()));
        word == "token" && asks && !harmless && !is_about(at + 1)
    });
    stem || token
        || PHRASES
            .iter()
            .chain(&CODES)
            .any(|phrase| has(words, phrase, &is_about))
}

fn has(words: &[String], phrase: &str, is_about: &impl Fn(usize) -> bool) -> bool {
    let count = phrase.split(' ').count();
    words.windows(count).enumerate().any(|(at, row)| {
        let mut pairs = row.iter().zip(phrase.split(' ')).enumerate();
        let same = pairs.all(|(nth, (word, want))| {
            word == want || nth + 1 == count && word.strip_suffix('s') == Some(want)
        });
        same && !is_about(at + count)
    })
}
