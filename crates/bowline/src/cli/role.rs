//! `role test`: prints the policy decision for a target, and the deciding rule.

use bowline_api::roles::{PolicyTestRequest, PolicyTestResponse};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::api_client::{ApiClient, QUICK_TIMEOUT};
use super::args::{RoleCommand, RoleTestArgs};
use super::failure::{CliExit, CliFailure};
use super::output::OutputFormat;
use super::{CommandContext, api_types, clean};
use bowline_config::policy_check;

const ROLE_TEST_PATH: &str = "/api/v1/roles/test";

pub(super) fn run(
    command: &RoleCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let RoleCommand::Test(args) = command;
    let query = build_query(args)?;
    // An explicit config file is evaluated, even if not in force.
    let (response, file) = match context.config_path() {
        Some(path) => {
            let config = bowline_config::load_config(Some(path), &context.env)?;
            (
                evaluate_file(&config, &query)?,
                Some(path.display().to_string()),
            )
        }
        None => (query_gateway(context, &query)?, None),
    };
    let decision: PolicyTestResponse = api_types::parse_response(&response)?;
    match context.out.format() {
        OutputFormat::Json => context.out.write_raw_json(&response)?,
        OutputFormat::Human => print_decision(&decision, file.as_deref(), context)?,
    }
    Ok(if decision.allowed {
        CliExit::Ok
    } else {
        CliExit::Denied
    })
}

fn build_query(args: &RoleTestArgs) -> Result<PolicyTestRequest, CliFailure> {
    let arguments = args
        .args
        .as_deref()
        .map(serde_json::from_str::<Box<RawValue>>);
    let arguments = match arguments {
        None => None,
        Some(Ok(arguments)) if is_object(&arguments) => Some(arguments),
        Some(_) => return Err(CliFailure::usage("--args must be a JSON object")),
    };
    Ok(PolicyTestRequest {
        role: args.role.clone(),
        target: args.target.clone(),
        contexts: args.context.clone(),
        principal: args.principal.clone(),
        profile: args.profile.clone(),
        arguments,
    })
}

fn is_object(json: &RawValue) -> bool {
    json.get().starts_with('{')
}

fn evaluate_file(
    config: &bowline_config::Config,
    query: &PolicyTestRequest,
) -> Result<Bytes, CliFailure> {
    let decision =
        policy_check::evaluate_query(&config.policy.compile(), &config.pattern_mentions, query);
    let decision = decision.map_err(|unclear| CliFailure::usage(unclear.to_string()))?;
    api_types::encode_json(&decision)
}

fn query_gateway(context: &CommandContext, query: &PolicyTestRequest) -> Result<Bytes, CliFailure> {
    let client = ApiClient::new(context)?;
    let body = api_types::encode_json(query)?;
    let response = client.post(ROLE_TEST_PATH, body, QUICK_TIMEOUT);
    response.map_err(|failure| match failure.code.as_str() {
        "invalid" => CliFailure::usage(failure.message),
        _ => failure,
    })
}

fn print_decision(
    decision: &PolicyTestResponse,
    file: Option<&str>,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    let verdict = if decision.allowed {
        "allowed"
    } else {
        "denied"
    };
    let target = match &*decision.kind {
        "tool" => format!("{}.{}", decision.server, decision.name),
        kind => format!("{kind}:{}.{}", decision.server, decision.name),
    };
    let line = format!(
        "{verdict}  {target}  {}: {}",
        decision.role, decision.reason
    );
    context.out.write_line(&clean::escape_line(&line))?;
    let location = match (decision.line, file) {
        (Some(line), Some(file)) => format!("{}, {file}:{line}", decision.rule),
        (Some(line), None) => format!("{}, line {line}", decision.rule),
        (None, _) => decision.rule.clone(),
    };
    context
        .out
        .write_line(&clean::escape_line(&format!("rule     {location}")))?;
    if decision.conditions > 0 {
        let count = decision.conditions;
        let note = format!("{count} condition(s) look at the arguments: add --args JSON");
        context.out.write_note(&note);
    }
    if let Some(near) = &decision.suggestion {
        let note = format!("did you mean role `{}`?", clean::escape_line(near));
        context.out.write_note(&note);
    }
    Ok(())
}
