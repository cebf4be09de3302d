//! Questions of a server without sessions that go on to a caller of its own era: they are passed
//! on as they are, but under the rules of all others.

use bowline_core::caller::{Abilities, Ability};
use bowline_wire::era::input::{self, Asked, BadInput};
use bowline_wire::jsonrpc::write_request;
use bowline_wire::splice::Edited;
use bowline_wire::{Message, Span};
use thiserror::Error;

use super::{ability, marks, secrets};

/// Why questions are not passed on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    /// They are no questions.
    #[error(transparent)]
    Bad(#[from] BadInput),
    /// No client can be asked this.
    #[error("no client can be asked `{0}`")]
    Unknown(String),
    /// The caller did not say that it can be asked this.
    #[error("the client has not declared the capability for what it asks")]
    Undeclared(Ability),
    /// A form asks for a secret.
    #[error("a form must not ask for secrets (`{0}`)")]
    Secret(String),
}

/// Returns a text whose questions stand at `at`, each with the name of the server that asks it.
///
/// # Errors
/// A question in it must not reach the caller.
pub fn relayed(
    server: &str,
    abilities: Abilities,
    text: &[u8],
    at: Span,
) -> Result<Vec<u8>, Unfit> {
    let mut out = text.to_vec();
    // From the last to the first, so that places before stay where they are.
    for asked in input::asked(text, at)?.iter().rev() {
        check(text, asked, abilities)?;
        out = marks::named(&out, asked.at, asked.params, server).into();
    }
    Ok(out)
}

/// Looks at a question as the request that it would be in the other era.
fn check(text: &[u8], asked: &Asked<'_>, abilities: Abilities) -> Result<(), Unfit> {
    let params = asked.params.map(|at| Edited::unchanged(at.of(text)));
    let mut line = Vec::new();
    write_request(&mut line, 0, &asked.method, params);
    let message = Message::parse_peer(line.into()).map_err(|_| BadInput::Requests)?;
    let Some(ability) = ability(&message) else {
        return Err(Unfit::Unknown(asked.method.as_ref().to_owned()));
    };
    if !abilities.has(ability) {
        return Err(Unfit::Undeclared(ability));
    }
    let wanted = secrets::wanted(message.params().unwrap_or_default());
    match wanted.filter(|_| ability == Ability::ElicitationForm) {
        Some(property) => Err(Unfit::Secret(property.into_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bowline_wire::object;

    use super::*;

    fn relay(questions: &str) -> Result<String, Unfit> {
        let result = format!(r#"{{"a":1,"inputRequests":{questions},"requestState":"s"}}"#);
        let at = object::field(result.as_bytes(), "inputRequests").unwrap();
        let abilities = [Ability::ElicitationForm, Ability::Roots]
            .into_iter()
            .fold(Abilities::default(), Abilities::with);
        let told = relayed("bank", abilities, result.as_bytes(), at)?;
        Ok(String::from_utf8(told).unwrap())
    }

    #[test]
    fn questions_are_passed_on_as_they_are_and_say_who_asks() {
        let form = r#"{"method":"elicitation/create","x":[1e400],"params":{"message":"m"}}"#;
        let told = relay(&format!(r#"{{"f":{form},"r":{{"method":"roots/list"}}}}"#));
        let mark = r#""_meta":{"dev.bowline/server":"bank"}"#;
        let form = form.replace(r#""params":{"#, &format!(r#""params":{{{mark},"#));
        let want = format!(
            r#"{{"a":1,"inputRequests":{{"f":{form},"r":{{"params":{{{mark}}},"method":"roots/list"}}}},"requestState":"s"}}"#
        );
        assert_eq!(told.unwrap(), want);
    }

    #[test]
    fn what_must_not_be_asked_is_not_passed_on() {
        let secret = concat!(
            r#"{"k":{"method":"elicitation/create","params":{"message":"m","requestedSchema":"#,
            r#"{"type":"object","properties":{"api_key":{"type":"string"}}}}}}"#,
        );
        assert_eq!(relay(secret), Err(Unfit::Secret("api_key".into())));
        let sampling = r#"{"k":{"method":"sampling/createMessage","params":{}}}"#;
        let undeclared = Unfit::Undeclared(Ability::Sampling);
        assert_eq!(relay(sampling), Err(undeclared));
        let unknown = r#"{"k":{"method":"tools/call","params":{}}}"#;
        assert_eq!(relay(unknown), Err(Unfit::Unknown("tools/call".into())));
        assert_eq!(relay("[]"), Err(Unfit::Bad(BadInput::Requests)));
    }
}
