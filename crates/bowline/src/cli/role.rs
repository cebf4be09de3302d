//! `role test`: what the rules say of one thing, and which rule says it.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::args::{RoleCommand, Trial};
use super::client::{Client, QUICK};
use super::failure::{Exit, Failure};
use super::out::Format;
use super::{Context, api, clean};
use crate::config;
use crate::trial;

const PATH: &str = "/api/v1/roles/test";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tried {
    role: String,
    kind: String,
    server: String,
    name: String,
    allowed: bool,
    rule: String,
    line: Option<usize>,
    reason: String,
    conditions: usize,
    suggestion: Option<String>,
}

pub(super) fn run(command: &RoleCommand, context: &mut Context) -> Result<Exit, Failure> {
    let RoleCommand::Test(trial) = command;
    let asked = asked(trial)?;
    // A file that is named is asked itself, be it in force or not.
    let (answer, file) = match context.config() {
        Some(path) => {
            let config = config::load(Some(path), &context.env)?;
            (by_file(&config, &asked)?, Some(path.display().to_string()))
        }
        None => (by_gateway(context, &asked)?, None),
    };
    let tried: Tried = api::read(&answer)?;
    match context.out.format() {
        Format::Json => context.out.raw(&answer)?,
        Format::Human => tell(&tried, file.as_deref(), context)?,
    }
    Ok(if tried.allowed {
        Exit::Ok
    } else {
        Exit::Denied
    })
}

fn asked(trial: &Trial) -> Result<Value, Failure> {
    let arguments: Option<Value> = match trial.args.as_deref().map(serde_json::from_str) {
        None => None,
        Some(Ok(arguments @ Value::Object(_))) => Some(arguments),
        Some(_) => return Err(Failure::usage("--args must be a JSON object")),
    };
    let mut asked = json!({
        "role": trial.role,
        "target": trial.target,
        "contexts": trial.context,
    });
    let more = [
        ("principal", trial.principal.clone().map(Value::String)),
        ("profile", trial.profile.clone().map(Value::String)),
        ("arguments", arguments),
    ];
    if let Value::Object(asked) = &mut asked {
        let given = more.into_iter();
        asked.extend(given.filter_map(|(key, value)| Some((key.to_owned(), value?))));
    }
    Ok(asked)
}

fn by_file(config: &config::Config, asked: &Value) -> Result<Bytes, Failure> {
    let asked = serde_json::from_str(&asked.to_string());
    let asked = asked.map_err(|error| Failure::usage(error.to_string()))?;
    let tried = trial::decide(&config.policy.policy(), &config.mentions, &asked);
    let tried = tried.map_err(|unclear| Failure::usage(unclear.to_string()))?;
    Ok(Bytes::from(tried.to_string()))
}

fn by_gateway(context: &Context, asked: &Value) -> Result<Bytes, Failure> {
    let client = Client::new(context)?;
    let body = Bytes::from(asked.to_string());
    let answer = client.post(PATH, body, QUICK);
    answer.map_err(|failure| match failure.code.as_str() {
        "invalid" => Failure::usage(failure.message),
        _ => failure,
    })
}

fn tell(tried: &Tried, file: Option<&str>, context: &mut Context) -> Result<(), Failure> {
    let verdict = if tried.allowed { "allowed" } else { "denied" };
    let what = match tried.kind.as_str() {
        "tool" => format!("{}.{}", tried.server, tried.name),
        kind => format!("{kind}:{}.{}", tried.server, tried.name),
    };
    let line = format!("{verdict}  {what}  {}: {}", tried.role, tried.reason);
    context.out.line(&clean::line(&line))?;
    let place = match (tried.line, file) {
        (Some(line), Some(file)) => format!("{}, {file}:{line}", tried.rule),
        (Some(line), None) => format!("{}, line {line}", tried.rule),
        (None, _) => tried.rule.clone(),
    };
    context
        .out
        .line(&clean::line(&format!("rule     {place}")))?;
    if tried.conditions > 0 {
        let count = tried.conditions;
        let note = format!("{count} condition(s) look at the arguments: add --args JSON");
        context.out.note(&note);
    }
    if let Some(near) = &tried.suggestion {
        let note = format!("did you mean role `{}`?", clean::line(near));
        context.out.note(&note);
    }
    Ok(())
}
