//! `worker mail`: shows, retries and drops dead letters of mailboxes.

use bowline_api::broker::{
    DeadLetterEntry, DeadLetterResponse, DeadLettersQuery, DeadLettersResponse,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cli::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use crate::cli::api_types;
use crate::cli::args::{MailCommand, MailListArgs};
use crate::cli::failure::{CliExit, CliFailure};
use crate::cli::output::{CliOutput, OutputFormat};
use crate::cli::pretty::indent_json;
use crate::cli::table::{format_duration, format_size, format_table};
use crate::cli::{CommandContext, clean};

const DEAD_LETTERS_PATH: &str = "/api/v1/broker/dead";

/// The displayed part of the message.
#[derive(Default, Deserialize)]
struct DeadLetterBody<'a> {
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

pub(super) fn run(
    command: &MailCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let out = &mut context.out;
    match command {
        MailCommand::Ls(filter) => list_letters(&client, filter, out),
        MailCommand::Show { id } => show_letter(&client, id, out),
        MailCommand::Retry { id } => retry_letter(&client, id, out),
        MailCommand::Drop { id } => drop_letter(&client, id, out),
    }?;
    Ok(CliExit::Ok)
}

fn list_letters(
    client: &ApiClient,
    filter: &MailListArgs,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let query = DeadLettersQuery {
        mailbox: filter.mailbox.clone(),
        ..DeadLettersQuery::default()
    };
    let path = api_types::with_query(DEAD_LETTERS_PATH, &query)?;
    let body = client.get(&path, QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let response: DeadLettersResponse = api_types::parse_response(&body)?;
    let Some(first) = response.letters.first() else {
        out.write_note("no letter is dead");
        return Ok(());
    };
    let rows = response
        .letters
        .iter()
        .map(|letter| letter_row(letter, response.now_ms));
    let rows: Vec<_> = rows.collect();
    let head = ["ID", "MAILBOX", "FROM", "KIND", "AGE", "TRIES", "REASON"];
    out.write_line(&format_table(head, &rows))?;
    if response.next.is_some() {
        out.write_note("there are more; narrow it by --mailbox");
    }
    let id = clean::escape_line(&first.id);
    out.write_note(&format!(
        "dead letters are kept and not delivered: bowline worker mail retry {id}, or drop {id}"
    ));
    Ok(())
}

fn letter_row(letter: &DeadLetterEntry, now_ms: u64) -> [String; 7] {
    let or_dash = |value: &str| if value.is_empty() { "-" } else { value }.to_owned();
    [
        letter.id.clone(),
        letter.mailbox.clone(),
        or_dash(&letter.from),
        or_dash(&letter.kind),
        format_duration(now_ms.saturating_sub(letter.stored_ms)),
        letter.attempts.to_string(),
        letter.reason.clone(),
    ]
    .map(|cell| clean::escape_line(&cell).into_owned())
}

fn show_letter(client: &ApiClient, id: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.get(&letter_path(id), QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let DeadLetterResponse { letter, now_ms, .. } = api_types::parse_response(&body)?;
    Ok(out.write_line(&format_details(&letter, now_ms))?)
}

/// Formats all known details of a dead letter, line by line.
fn format_details(letter: &DeadLetterEntry, now_ms: u64) -> String {
    let stored = format_duration(now_ms.saturating_sub(letter.stored_ms));
    let details = [
        ("id", letter.id.clone()),
        ("mailbox", letter.mailbox.clone()),
        ("from", letter.from.clone()),
        ("kind", letter.kind.clone()),
        ("message", letter.message.clone()),
        ("stored", format!("{stored} ago")),
        ("tries", letter.attempts.to_string()),
        ("size", format_size(letter.bytes)),
        ("reason", letter.reason.clone()),
    ];
    let details = details.into_iter().filter(|(_, text)| !text.is_empty());
    let details = details.map(|(label, text)| {
        let line = format!("{label:<10} {text}");
        clean::escape_line(&line).into_owned()
    });
    let message = letter.letter.as_deref().map(RawValue::get);
    let message: DeadLetterBody<'_> = message
        .and_then(|message| serde_json::from_str(message).ok())
        .unwrap_or_default();
    let body = message.body.map(|body| {
        let json = indent_json(body.get());
        format!("{:<10} {}", "body", clean::escape_text(&json))
    });
    details.chain(body).collect::<Vec<_>>().join("\n")
}

fn retry_letter(client: &ApiClient, id: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let path = format!("{}/retry", letter_path(id));
    let body = client.post(&path, Bytes::from_static(b"{}"), QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let DeadLetterResponse { letter, .. } = api_types::parse_response(&body)?;
    let line = format!("{id} waits again in mailbox {}", letter.mailbox);
    Ok(out.write_line(&clean::escape_line(&line))?)
}

/// Drops a dead letter for good, and prints the details.
fn drop_letter(client: &ApiClient, id: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.delete(&letter_path(id), QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let DeadLetterResponse { letter, now_ms, .. } = api_types::parse_response(&body)?;
    out.write_line(&format_details(&letter, now_ms))?;
    out.write_note("dropped for good: it is never delivered");
    Ok(())
}

fn letter_path(id: &str) -> String {
    format!("{DEAD_LETTERS_PATH}/{}", percent_encode(id))
}
