//! How fast the journal is beside the disk it writes to, and how much room it takes.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bowline_journal::{Draft, Journal, Lane, Order, Published};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Outcome;
use crate::args::Args;
use crate::child::Suffering;
use crate::model::Truth;
use crate::open::{self, Clock, instant};
use crate::plan::{self, BODY_BYTES};
use crate::record::{Op, Phase};
use crate::shim::{Fault, Shim};
use crate::writer::{HOLD, Writer};

/// Producers at once.
const PRODUCERS: u64 = 64;

/// Messages that are left in the journal that is churned.
const CHURN_LIVE: u64 = 1_000;

/// Pairs of an append to a file and a publication.
const PAIRS: u64 = 400;

/// Messages that one producer sends while syncs are counted.
const COUNTED: u64 = 200;

/// How long it may take to fill a journal.
const FILL_PATIENCE: Duration = Duration::from_secs(300);

/// The file that is kept to be given up when the disk is full: it is room, not contents.
const BALLAST: &str = "ballast";

/// Measures everything, or what `--only` names.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut tally = json!({"part": "bench"});
    let wanted = |part: &str| !args.has("only") || args.has(part);
    if wanted("producers") {
        crate::merge(
            &mut tally,
            producers(args.number("seconds", 3)?, args.number("runs", 3)?)?,
        );
    }
    if wanted("single") {
        crate::merge(&mut tally, single()?);
    }
    if wanted("open") {
        crate::merge(&mut tally, opening(args.number("live", 100_000)?)?);
    }
    if wanted("churn") {
        crate::merge(&mut tally, churn(args.number("churn", 1_000_000)?)?);
    }
    if wanted("syncs") {
        crate::merge(&mut tally, syncs()?);
    }
    Ok(Outcome { tally, kept: true })
}

/// A message of a producer; the numbers of the ordeal proper are not needed here.
fn draft(lane: &Lane, number: u64) -> Draft {
    Draft {
        lane: lane.clone(),
        dedupe: plan::dedupe(number),
        digest: plan::digest(number),
        body: plan::body(number),
        ttl: None,
        hold: None,
    }
}

/// Publishes one message, takes the oldest and ends it; how long the first took, in nanoseconds.
async fn turn(journal: &dyn Journal, clock: Clock, lane: &Lane, number: u64) -> Result<u64> {
    let draft = draft(lane, number);
    let start = instant();
    journal.publish(draft, clock.at()).await?;
    let took = u64::try_from(start.elapsed().as_nanos())?;
    let leased = journal
        .lease(lane, Order::Strict, 1, HOLD, clock.at())
        .await?;
    let delivery = leased.first().context("nothing was handed out")?;
    journal.ack(delivery.receipt, None, clock.at()).await?;
    Ok(took)
}

/// Runs producers side by side, each until it says that it is done; all their latencies, sorted.
async fn side_by_side(
    journal: &Arc<dyn Journal>,
    clock: Clock,
    messages: u64,
    time: Duration,
) -> Result<Vec<u64>> {
    let mut tasks: JoinSet<Result<Vec<u64>>> = JoinSet::new();
    let start = instant();
    for producer in 0..PRODUCERS {
        let journal = Arc::clone(journal);
        tasks.spawn(async move {
            let lane = Lane::new(&format!("bench/{producer}"))?;
            let mut took = Vec::new();
            for nth in 0..messages {
                if start.elapsed() >= time {
                    break;
                }
                let number = plan::number(2, producer, nth);
                took.push(turn(journal.as_ref(), clock, &lane, number).await?);
            }
            Ok(took)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.extend(ended.context("a producer panicked")??);
    }
    all.sort_unstable();
    Ok(all)
}

/// Many producers: operations a second, and how long a publication takes.
fn producers(seconds: u64, runs: usize) -> Result<Value> {
    let mut figures = Vec::new();
    for _ in 0..runs {
        let dir = tempfile::tempdir()?;
        let journal = open::open(dir.path())?;
        let time = Duration::from_secs(seconds);
        let start = instant();
        let took = open::wait(side_by_side(&journal, Clock::new(), u64::MAX, time))??;
        let ops = 2.0 * took.len() as f64 / start.elapsed().as_secs_f64();
        open::wait(journal.close())?;
        figures.push((ops, at(&took, 50), at(&took, 99)));
    }
    figures.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ops, p50, p99) = *figures.get(runs / 2).context("nothing was measured")?;
    Ok(json!({
        "ops_per_second": ops, "enqueue_p50_ms": p50, "enqueue_p99_ms": p99,
        "producers": PRODUCERS, "all_runs": figures,
    }))
}

/// One producer beside the disk's own append and sync, in turn.
fn single() -> Result<Value> {
    let dir = tempfile::tempdir()?;
    let mut file = File::create(dir.path().join("floor"))?;
    let state = dir.path().join("state");
    open::directory(&state)?;
    let journal = open::open(&state)?;
    let clock = Clock::new();
    let lane = Lane::new("bench/one")?;
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    open::wait(async {
        for nth in 0..PAIRS {
            let body = plan::body(nth);
            let start = instant();
            file.write_all(&body)?;
            file.sync_data()?;
            floor.push(u64::try_from(start.elapsed().as_nanos())?);
            let draft = draft(&lane, nth);
            let start = instant();
            journal.publish(draft, clock.at()).await?;
            ours.push(u64::try_from(start.elapsed().as_nanos())?);
        }
        journal.close().await;
        anyhow::Ok(())
    })??;
    floor.sort_unstable();
    ours.sort_unstable();
    Ok(json!({
        "disk_p50_ms": at(&floor, 50), "disk_p99_ms": at(&floor, 99),
        "one_p50_ms": at(&ours, 50), "one_p99_ms": at(&ours, 99),
        "one_to_disk": at(&ours, 50) / at(&floor, 50), "body_bytes": BODY_BYTES,
    }))
}

/// Opening a journal with many live rows, after its writer was killed.
fn opening(live: u64) -> Result<Value> {
    let dir = tempfile::tempdir()?;
    let mut truth = Truth::default();
    let options = ["--fill".to_owned(), live.to_string()];
    let mut writer = Suffering::start(dir.path(), &options, &[])?;
    writer.over(&mut truth, FILL_PATIENCE)?;
    writer.kill(&mut truth)?;
    let (bytes, _) = size(dir.path())?;
    let start = instant();
    let journal = open::open(dir.path())?;
    let open_ms = start.elapsed().as_secs_f64() * 1_000.0;
    let found = open::wait(async {
        let lanes = journal.lanes(plan::PREFIX, Clock::new().at()).await;
        journal.close().await;
        lanes
    })??;
    let waiting: u64 = found.iter().map(|lane| lane.waiting).sum();
    ensure!(waiting == live, "{waiting} of {live} are there");
    let start = instant();
    let journal = open::open(dir.path())?;
    let again_ms = start.elapsed().as_secs_f64() * 1_000.0;
    open::wait(journal.close())?;
    Ok(json!({
        "open_live_rows": live, "open_ms": open_ms, "open_clean_ms": again_ms,
        "open_bytes": bytes,
    }))
}

/// Publishes so many messages and lingers until somebody kills us.
pub(crate) async fn fill(writer: &Arc<Writer>, live: u64) -> Result<()> {
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for producer in 0..PRODUCERS {
        let writer = Arc::clone(writer);
        tasks.spawn(async move {
            let lane = Lane::new(&format!("{}{producer}", plan::PREFIX))?;
            for nth in (producer..live).step_by(usize::try_from(PRODUCERS)?) {
                let draft = draft(&lane, plan::number(1, producer, nth));
                let given = writer.journal.publish(draft, writer.clock.at()).await?;
                ensure!(
                    matches!(given, Published::Stored { .. }),
                    "{nth} was known before"
                );
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a producer panicked")??;
    }
    writer.teller.tell(Phase::Over, Op::None, 0, 0)?;
    std::future::pending().await
}

/// Many messages that come and go while a few stay: what is left on the disk.
fn churn(messages: u64) -> Result<Value> {
    let dir = tempfile::tempdir()?;
    let journal = open::open(dir.path())?;
    let clock = Clock::new();
    let start = instant();
    open::wait(async {
        for nth in 0..CHURN_LIVE {
            let producer = nth % PRODUCERS;
            let lane = Lane::new(&format!("bench/{producer}"))?;
            let number = plan::number(1, producer, nth);
            journal.publish(draft(&lane, number), clock.at()).await?;
        }
        let each = messages.div_ceil(PRODUCERS);
        side_by_side(&journal, clock, each, Duration::MAX).await
    })??;
    let seconds = start.elapsed().as_secs_f64();
    let (open_bytes, _) = size(dir.path())?;
    open::wait(journal.close())?;
    drop(journal);
    let (bytes, ballast) = size(dir.path())?;
    Ok(json!({
        "churn_messages": messages, "churn_live": CHURN_LIVE, "churn_seconds": seconds,
        "churn_messages_per_second": messages as f64 / seconds,
        "churn_open_bytes": open_bytes, "churn_bytes": bytes, "ballast_bytes": ballast,
    }))
}

/// Syncs of one producer's commits, counted.
fn syncs() -> Result<Value> {
    let home = tempfile::tempdir()?;
    let shim = Shim::build(home.path())?;
    let state = home.path().join("state");
    open::directory(&state)?;
    let count = |commits: u64| -> Result<u64> {
        let told = home.path().join("count");
        let options = ["--commits".to_owned(), commits.to_string()];
        let shim = shim.env(&state, Fault::Counted(&told));
        let status = Suffering::start(&state, &options, &shim)?.end(&mut Truth::default())?;
        ensure!(status.success(), "the writer failed ({status})");
        let said = fs::read_to_string(told).context("the shim counted nothing")?;
        Ok(said.trim().parse()?)
    };
    // The difference leaves out what opening and closing cost, and what making the file cost.
    count(1)?;
    let (few, many) = (count(1)?, count(COUNTED + 1)?);
    Ok(json!({"syncs_per_commit": (many - few) as f64 / COUNTED as f64}))
}

/// Publishes so many messages one after the other, and closes the journal.
pub(crate) async fn commits(writer: &Writer, commits: u64) -> Result<()> {
    let lane = Lane::new(&format!("{}commits", plan::PREFIX))?;
    let run = u64::from(std::process::id());
    for nth in 0..commits {
        let draft = draft(&lane, plan::number(run, 0, nth));
        writer.journal.publish(draft, writer.clock.at()).await?;
    }
    writer.journal.close().await;
    Ok(())
}

/// Milliseconds below which so many of a hundred lie.
fn at(sorted: &[u64], percent: usize) -> f64 {
    let nth = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted
        .get(nth)
        .map_or(f64::NAN, |nanos| *nanos as f64 / 1e6)
}

/// Bytes of the files of a directory, and of the ballast among them, which does not count.
fn size(dir: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut ballast) = (0, 0);
    for file in fs::read_dir(dir)? {
        let file = file?;
        let about = file.metadata()?;
        match file.file_name().to_string_lossy().contains(BALLAST) {
            true => ballast += about.len(),
            false => bytes += about.len(),
        }
    }
    Ok((bytes, ballast))
}
