//! `audit`: shows, verifies and exports the audit trail.

mod timestamps;
mod trail_export;
mod trail_source;

use std::path::PathBuf;
use std::time::Duration;

use bowline_api::audit_trail::{
    AuditRingBreak, AuditRingCounts, AuditRingHead, AuditVerifyQuery, AuditVerifyResponse,
};
use bowline_journal::audit::{
    AuditError, AuditFilter, AuditRow, AuditRowKind, ExpectedHeads, RingReports, RowDamage,
};
use bowline_runtime::{Clock as _, SystemClock};
use clap::{Args, Subcommand};
use owo_colors::OwoColorize as _;

use self::trail_source::TrailSource;
use super::api_client::ApiClient;
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::table::{format_count, format_micros};
use super::{CommandContext, api_types, clean};
use crate::civil;

/// Maximum time the gateway holds a request for new rows.
const FOLLOW_WAIT_MS: u64 = 25_000;

/// Maximum number of rows that follow at once.
const FOLLOW_ROWS_MAX: usize = 1_000;

/// Maximum time to verify a whole trail.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(600);

/// What to do with the trail.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Show the newest rows
    Tail(AuditTailArgs),
    /// Read all rows and name the first that is not as it was written; exits 1 when there is one
    Verify {
        /// Hold it against a head that was noted before, as `verify` prints it
        #[arg(long, value_name = "SEQ:HASH")]
        expect: Option<String>,
        /// The same for the ring of refusals
        #[arg(long, value_name = "SEQ:HASH")]
        expect_denials: Option<String>,
    },
    /// Write rows as JSON lines, each with its hash
    Export(AuditExportArgs),
}

/// Options of `audit tail`.
#[derive(Args, Clone, Debug)]
pub struct AuditTailArgs {
    /// Wait for more
    #[arg(short, long)]
    follow: bool,
    /// How many rows to begin with
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=2_000))]
    rows: u32,
    /// Only of this principal
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Only of this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only of this kind, such as denied
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
}

/// Options of `audit export`.
#[derive(Args, Clone, Debug)]
pub struct AuditExportArgs {
    /// Not before: 2026-05-01, 2026-05-01T12:30:00Z, or 2h for two hours ago
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Before
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Into this file, which must not exist yet; to stdout where absent
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(
    command: &AuditCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    match command {
        AuditCommand::Tail(tail) => tail_rows(tail, context),
        AuditCommand::Verify {
            expect,
            expect_denials,
        } => verify_trail(expect.as_deref(), expect_denials.as_deref(), context),
        AuditCommand::Export(export) => {
            let now = SystemClock::start().unix_ms();
            let filter = AuditFilter {
                from_ms: timestamps::parse_time_option(export.from.as_deref(), now)?,
                to_ms: timestamps::parse_time_option(export.to.as_deref(), now)?,
                ..AuditFilter::default()
            };
            trail_export::run(&filter, export.out.as_deref(), context)
        }
    }
}

/// Builds the failure for an unreadable trail.
pub(super) fn unreadable_trail(error: &AuditError) -> CliFailure {
    let failure = CliFailure::new(CliExit::Unexpected, "audit", error.to_string());
    match std::error::Error::source(error) {
        Some(cause) => failure.with_hint(format!("cause: {cause}")),
        None => failure,
    }
}

fn verify_trail(
    calls: Option<&str>,
    denials: Option<&str>,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let expect = ExpectedHeads::parse(calls, denials);
    let expect = expect.map_err(|error| CliFailure::usage(format!("--expect is {error}")))?;
    let response = match TrailSource::locate_trail(context)? {
        TrailSource::Files(directory) => {
            let report = RingReports::verify_rings(&directory, expect)
                .map_err(|error| unreadable_trail(&error))?;
            api_types::encode_json(&bowline_edge::to_verify_response(&report))?
        }
        TrailSource::Gateway(client) => {
            let query = AuditVerifyQuery {
                expect: calls.map(str::to_owned),
                expect_denials: denials.map(str::to_owned),
            };
            let path = api_types::with_query("/api/v1/audit/verify", &query)?;
            client.get(&path, VERIFY_TIMEOUT)?
        }
    };
    let report: AuditVerifyResponse = api_types::parse_response(&response)?;
    match context.out.format() {
        OutputFormat::Json => context.out.write_raw_json(&response)?,
        OutputFormat::Human => print_report(&report, &mut context.out)?,
    }
    Ok(if report.ok {
        CliExit::Ok
    } else {
        CliExit::Unexpected
    })
}

fn print_report(report: &AuditVerifyResponse, out: &mut CliOutput) -> Result<(), CliFailure> {
    print_ring(&report.calls, "", out)?;
    print_ring(&report.denials.counts, "denials ", out)
}

/// Prints the state of a ring and the head for a later verification.
fn print_ring(report: &AuditRingCounts, ring: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let rows = format!(
        "{ring}{} ({} to {}) in {}",
        format_count(report.rows, "row"),
        report.first,
        report.head.seq,
        format_count(report.files, "file")
    );
    match &report.broken {
        None => out.write_line(&format!("{} {rows}", "ok".green()))?,
        Some(AuditRingBreak { reason, .. }) if reason == RowDamage::Missing.as_str() => {
            let text = format!("{ring}trail: neither rows nor a head are here");
            out.write_line(&format!("{} {text}", "missing".red()))?;
        }
        Some(AuditRingBreak { seq, reason, file }) => {
            let location = file.as_ref().map(|file| format!(" in {file}"));
            let line = format!("{ring}row {seq}: {reason}{}", location.unwrap_or_default());
            out.write_line(&format!("{} {}", "broken".red(), clean::escape_line(&line)))?;
            out.write_line(&format!("as they were written: {rows}"))?;
        }
    }
    if report.let_go > 0 {
        let early = match report.let_go_early {
            0 => String::new(),
            early => format!(", {early} of them before their time"),
        };
        let let_go = format_count(report.let_go, "row");
        out.write_line(&format!(
            "{ring}let go: {let_go} (1 to {}){early}",
            report.let_go
        ))?;
    }
    if report.merged > 0 {
        let (merged, coalesced) = (format_count(report.merged, "row"), report.coalesced);
        out.write_line(&format!(
            "{ring}coalesced: {merged} stand for {coalesced} refusals"
        ))?;
    }
    if report.gaps > 0 {
        let lost = format_count(report.lost, "row");
        out.write_line(&format!(
            "{} tell of {lost} that were lost",
            format_count(report.gaps, "gap")
        ))?;
    }
    if report.broken.is_none() {
        let AuditRingHead { seq, hash } = &report.head;
        out.write_line(&format!("{ring}head {seq}:{}", clean::escape_line(hash)))?;
    }
    Ok(())
}

fn tail_rows(tail: &AuditTailArgs, context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let kind = tail.kind.as_deref().map(|word| {
        let kinds = AuditRowKind::ALL.map(AuditRowKind::as_str).join(", ");
        AuditRowKind::from_name(word)
            .ok_or_else(|| CliFailure::usage(format!("a kind is one of {kinds}")))
    });
    let filter = AuditFilter {
        principal: tail.principal.clone(),
        server: tail.server.clone(),
        kind: kind.transpose()?,
        ..AuditFilter::default()
    };
    if tail.follow {
        return follow_rows(&filter, tail.rows, context);
    }
    let page = TrailSource::locate_trail(context)?.newest_rows(&filter, tail.rows)?;
    print_rows(&page.rows, &mut context.out)?;
    Ok(CliExit::Ok)
}

/// Follows the trail until the gateway stops or stdout is closed.
fn follow_rows(
    filter: &AuditFilter,
    rows: u32,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let mut query = trail_source::filter_query(filter, rows as usize);
    let mut page = trail_source::fetch_page(&client, &query)?;
    query.limit = Some(FOLLOW_ROWS_MAX);
    query.wait_ms = FOLLOW_WAIT_MS;
    loop {
        print_rows(&page.rows, &mut context.out)?;
        query.after = Some(page.next.to_string());
        page = trail_source::fetch_page(&client, &query)?;
    }
}

fn print_rows(rows: &[String], out: &mut CliOutput) -> Result<(), CliFailure> {
    for text in rows {
        match (out.format(), serde_json::from_str::<AuditRow<'_>>(text)) {
            (OutputFormat::Human, Ok(row)) => {
                out.write_line(&clean::escape_line(&format_row(&row)))?
            }
            (OutputFormat::Human | OutputFormat::Json, _) => out.write_raw_json(text.as_bytes())?,
        }
    }
    Ok(())
}

/// Formats one row for people.
fn format_row(row: &AuditRow<'_>) -> String {
    let or_dash = |word: &Option<_>| -> String { word.as_deref().unwrap_or("-").to_owned() };
    let name = match (&row.server, &row.name) {
        (Some(server), Some(name)) => format!("{server}.{name}"),
        (None, Some(name)) => name.to_string(),
        (server, None) => or_dash(server),
    };
    let mut end = or_dash(&row.outcome);
    if let Some(class) = row.class.as_ref().filter(|class| **class != end) {
        end = format!("{end} {class}");
    }
    if let Some(origin) = row.origin.as_ref().filter(|origin| *origin != "live") {
        end = format!("{end} ({origin})");
    }
    let duration = row.duration_us.map(format_micros).unwrap_or_default();
    let times = row.count.map(|count| format!(" {count} times"));
    let times = times.unwrap_or_default();
    let from = row.peer.as_ref().map(|peer| format!("  from {peer}"));
    let from = from.unwrap_or_default();
    let lost = row
        .lost
        .map(|lost| format!(" {lost} lost"))
        .unwrap_or_default();
    let reason = row.reason.as_ref();
    let reason = reason.map(|text| format!("  {text}")).unwrap_or_default();
    format!(
        "{} {:>6}  {:<9} {:<12} {name:<24} {end}{times}{lost}  {duration}{reason}{from}",
        civil::format_utc(row.at_ms),
        row.seq,
        row.kind.as_str(),
        or_dash(&row.principal),
    )
}
