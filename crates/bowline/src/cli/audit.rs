//! `audit`: who called what, whether the trail of it is whole, and all of it for other programs.

mod export;
mod moment;
mod source;

use std::path::PathBuf;
use std::time::Duration;

use bowline_host::ports::{Clock as _, SystemClock};
use bowline_journal::audit::{AuditError, Damage, ExpectedHeads, Filter, Kind, Row, Verdicts};
use clap::{Args, Subcommand};
use owo_colors::OwoColorize as _;
use serde::Deserialize;

use self::source::Source;
use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::table::{count, micros};
use super::{Context, api, clean};
use crate::civil;

/// Longest the gateway holds a question for rows that are not there yet.
const WAIT_MS: u64 = 25_000;

/// Longest a gateway may take to read a whole trail.
const VERIFY_WAIT: Duration = Duration::from_secs(600);

/// What to do with the trail.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Show the newest rows
    Tail(Tail),
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
    Export(Export),
}

/// Options of `audit tail`.
#[derive(Args, Clone, Debug)]
pub struct Tail {
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
pub struct Export {
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

pub(super) fn run(command: &AuditCommand, context: &mut Context) -> Result<Exit, Failure> {
    match command {
        AuditCommand::Tail(tail) => show(tail, context),
        AuditCommand::Verify {
            expect,
            expect_denials,
        } => verify((expect.as_deref(), expect_denials.as_deref()), context),
        AuditCommand::Export(export) => {
            let now = SystemClock::start().unix_ms();
            let filter = Filter {
                from_ms: moment::read(export.from.as_deref(), now)?,
                to_ms: moment::read(export.to.as_deref(), now)?,
                ..Filter::default()
            };
            export::run(&filter, export.out.as_deref(), context)
        }
    }
}

/// Tells why a trail cannot be read or written.
pub(super) fn unreadable(error: &AuditError) -> Failure {
    let failure = Failure::new(Exit::Unexpected, "audit", error.to_string());
    match std::error::Error::source(error) {
        Some(cause) => failure.hint(format!("cause: {cause}")),
        None => failure,
    }
}

#[derive(Debug, Deserialize)]
struct Rings {
    ok: bool,
    #[serde(flatten)]
    calls: Verdict,
    denials: Verdict,
}

#[derive(Debug, Deserialize)]
struct Verdict {
    rows: u64,
    first: u64,
    head: ShownHead,
    files: u64,
    gaps: u64,
    lost: u64,
    let_go: u64,
    let_go_early: u64,
    merged: u64,
    coalesced: u64,
    broken: Option<Broken>,
}

#[derive(Debug, Deserialize)]
struct ShownHead {
    seq: u64,
    hash: String,
}

#[derive(Debug, Deserialize)]
struct Broken {
    seq: u64,
    reason: String,
    file: Option<String>,
}

fn verify(
    (calls, denials): (Option<&str>, Option<&str>),
    context: &mut Context,
) -> Result<Exit, Failure> {
    let expect = ExpectedHeads::parse(calls, denials);
    let expect = expect.map_err(|error| Failure::usage(format!("--expect is {error}")))?;
    let verdict = match Source::find(context)? {
        Source::Files(directory) => {
            let seen = Verdicts::verify(&directory, expect).map_err(|error| unreadable(&error))?;
            crate::audit::verdicts(&seen).to_string().into()
        }
        Source::Gateway(client) => {
            let asked = [("expect", calls), ("expect_denials", denials)];
            let asked = asked.into_iter().filter_map(|(key, head)| {
                let head = encode(head?);
                Some(format!("&{key}={head}"))
            });
            let asked: String = asked.collect();
            client.get(&format!("/api/v1/audit/verify?v=1{asked}"), VERIFY_WAIT)?
        }
    };
    let seen: Rings = api::read(&verdict)?;
    match context.out.format() {
        Format::Json => context.out.raw(&verdict)?,
        Format::Human => tell(&seen, &mut context.out)?,
    }
    Ok(if seen.ok { Exit::Ok } else { Exit::Unexpected })
}

fn tell(seen: &Rings, out: &mut Out) -> Result<(), Failure> {
    tell_ring(&seen.calls, "", out)?;
    tell_ring(&seen.denials, "denials ", out)
}

/// Tells what is kept of a ring, what is not, and how it can be proved later.
fn tell_ring(seen: &Verdict, ring: &str, out: &mut Out) -> Result<(), Failure> {
    let rows = format!(
        "{ring}{} ({} to {}) in {}",
        count(seen.rows, "row"),
        seen.first,
        seen.head.seq,
        count(seen.files, "file")
    );
    match &seen.broken {
        None => out.line(&format!("{} {rows}", "ok".green()))?,
        Some(Broken { reason, .. }) if reason == Damage::Missing.as_str() => {
            let text = format!("{ring}trail: neither rows nor a head are here");
            out.line(&format!("{} {text}", "missing".red()))?;
        }
        Some(Broken { seq, reason, file }) => {
            let place = file.as_ref().map(|file| format!(" in {file}"));
            let line = format!("{ring}row {seq}: {reason}{}", place.unwrap_or_default());
            out.line(&format!("{} {}", "broken".red(), clean::line(&line)))?;
            out.line(&format!("as they were written: {rows}"))?;
        }
    }
    if seen.let_go > 0 {
        let early = match seen.let_go_early {
            0 => String::new(),
            early => format!(", {early} of them before their time"),
        };
        let let_go = count(seen.let_go, "row");
        out.line(&format!(
            "{ring}let go: {let_go} (1 to {}){early}",
            seen.let_go
        ))?;
    }
    if seen.merged > 0 {
        let (merged, coalesced) = (count(seen.merged, "row"), seen.coalesced);
        out.line(&format!(
            "{ring}coalesced: {merged} stand for {coalesced} refusals"
        ))?;
    }
    if seen.gaps > 0 {
        let lost = count(seen.lost, "row");
        out.line(&format!(
            "{} tell of {lost} that were lost",
            count(seen.gaps, "gap")
        ))?;
    }
    if seen.broken.is_none() {
        let ShownHead { seq, hash } = &seen.head;
        out.line(&format!("{ring}head {seq}:{}", clean::line(hash)))?;
    }
    Ok(())
}

fn show(tail: &Tail, context: &mut Context) -> Result<Exit, Failure> {
    let kind = tail.kind.as_deref().map(|word| {
        let kinds = Kind::ALL.map(Kind::as_str).join(", ");
        Kind::named(word).ok_or_else(|| Failure::usage(format!("a kind is one of {kinds}")))
    });
    let filter = Filter {
        principal: tail.principal.clone(),
        server: tail.server.clone(),
        kind: kind.transpose()?,
        ..Filter::default()
    };
    if tail.follow {
        return follow(&filter, tail.rows, context);
    }
    let page = Source::find(context)?.newest(&filter, tail.rows)?;
    print(&page.rows, &mut context.out)?;
    Ok(Exit::Ok)
}

/// Ends when the gateway does, or when nobody reads what is written.
fn follow(filter: &Filter, rows: u32, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let query = source::query(filter);
    let body = client.get(&format!("/api/v1/audit?limit={rows}{query}"), QUICK)?;
    let mut page = source::read(&body)?;
    loop {
        print(&page.rows, &mut context.out)?;
        let after = page.next;
        let path = format!("/api/v1/audit?after={after}&limit=1000&wait_ms={WAIT_MS}{query}");
        page = source::read(&client.get(&path, QUICK + Duration::from_millis(WAIT_MS))?)?;
    }
}

fn print(rows: &[String], out: &mut Out) -> Result<(), Failure> {
    for text in rows {
        match (out.format(), serde_json::from_str::<Row<'_>>(text)) {
            (Format::Human, Ok(row)) => out.line(&clean::line(&line(&row)))?,
            (Format::Human | Format::Json, _) => out.raw(text.as_bytes())?,
        }
    }
    Ok(())
}

/// One row for people.
fn line(row: &Row<'_>) -> String {
    let or = |word: &Option<_>| -> String { word.as_deref().unwrap_or("-").to_owned() };
    let name = match (&row.server, &row.name) {
        (Some(server), Some(name)) => format!("{server}.{name}"),
        (None, Some(name)) => name.to_string(),
        (server, None) => or(server),
    };
    let mut end = or(&row.outcome);
    if let Some(class) = row.class.as_ref().filter(|class| **class != end) {
        end = format!("{end} {class}");
    }
    if let Some(origin) = row.origin.as_ref().filter(|origin| *origin != "live") {
        end = format!("{end} ({origin})");
    }
    let took = row.duration_us.map(micros).unwrap_or_default();
    let times = row.count.map(|count| format!(" {count} times"));
    let times = times.unwrap_or_default();
    let from = row.peer.as_ref().map(|peer| format!("  from {peer}"));
    let from = from.unwrap_or_default();
    let lost = row
        .lost
        .map(|lost| format!(" {lost} lost"))
        .unwrap_or_default();
    let reason = row.reason.as_ref();
    let reason = reason.map(|why| format!("  {why}")).unwrap_or_default();
    format!(
        "{} {:>6}  {:<9} {:<12} {name:<24} {end}{times}{lost}  {took}{reason}{from}",
        civil::shown(row.at_ms),
        row.seq,
        row.kind.as_str(),
        or(&row.principal),
    )
}
