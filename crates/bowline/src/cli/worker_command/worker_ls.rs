//! `worker ls`: lists connected peers and nonempty mailboxes.

use bowline_api::broker::{BrokerPeer, BrokerResponse, Mailbox};

use crate::cli::api_client::{ApiClient, QUICK_TIMEOUT};
use crate::cli::api_types;
use crate::cli::failure::{CliExit, CliFailure};
use crate::cli::output::OutputFormat;
use crate::cli::table::{format_duration, format_table};
use crate::cli::{CommandContext, clean};

const BROKER_PATH: &str = "/api/v1/broker";

pub(super) fn run(context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let out = &mut context.out;
    let body = client.get(BROKER_PATH, QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        out.write_raw_json(&body)?;
        return Ok(CliExit::Ok);
    }
    let response: BrokerResponse = api_types::parse_response(&body)?;
    let ago = |ms: u64| format_duration(response.now_ms.saturating_sub(ms));
    if response.peers.is_empty() {
        out.write_note("nobody is connected: bowline worker join --help");
    } else {
        let rows: Vec<_> = response
            .peers
            .iter()
            .map(|one| peer_row(one, &ago))
            .collect();
        let head = ["MAILBOX", "ROLE", "SINCE", "TAKES", "UNACKED", "OFFERS"];
        out.write_line(&format_table(head, &rows))?;
    }
    if !response.mailboxes.is_empty() {
        let rows: Vec<_> = response
            .mailboxes
            .iter()
            .map(|one| mailbox_row(one, &ago))
            .collect();
        out.write_line(&format_table(
            ["MAILBOX", "WAITING", "DEAD", "OLDEST"],
            &rows,
        ))?;
    }
    if response.mailboxes.iter().any(|one| one.dead > 0) {
        out.write_note("dead letters are kept and not delivered: bowline worker mail ls");
    }
    Ok(CliExit::Ok)
}

fn peer_row(peer: &BrokerPeer, ago: &impl Fn(u64) -> String) -> [String; 6] {
    let dash = || "-".to_owned();
    [
        peer.mailbox.clone(),
        peer.role.as_deref().map_or_else(dash, str::to_owned),
        ago(peer.since_ms),
        if peer.subscribed { "messages" } else { "-" }.to_owned(),
        peer.unacked.to_string(),
        match peer.offers.as_slice() {
            [] => dash(),
            offers => offers.join(", "),
        },
    ]
    .map(|cell| clean::escape_line(&cell).into_owned())
}

fn mailbox_row(mailbox: &Mailbox, ago: &impl Fn(u64) -> String) -> [String; 4] {
    [
        clean::escape_line(&mailbox.mailbox).into_owned(),
        mailbox.waiting.to_string(),
        mailbox.dead.to_string(),
        mailbox.oldest_ms.map_or_else(|| "-".to_owned(), ago),
    ]
}
