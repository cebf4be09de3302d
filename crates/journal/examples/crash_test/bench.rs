//! Benchmarks of the journal against the raw disk: throughput, latency and file size.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bowline_journal::{Journal, LaneName, LeaseOrder, MessageDraft, PublishOutcome};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::PartReport;
use crate::args::Args;
use crate::child::WriterProcess;
use crate::model::ExpectedState;
use crate::open::{self, Clock, instant};
use crate::plan::{self, BODY_BYTES};
use crate::record::{Op, OpPhase};
use crate::shim::{Shim, ShimFault};
use crate::writer::{LEASE_TIME, LoadWriter};

/// Concurrent producers.
const PRODUCERS: u64 = 64;

/// Messages left in the journal during the churn.
const CHURN_LIVE: u64 = 1_000;

/// Pairs of a file append and a publication.
const PAIRS: u64 = 400;

/// Messages of a producer while syncs are counted.
const COUNTED_COMMITS: u64 = 200;

/// How long filling a journal may take.
const FILL_PATIENCE: Duration = Duration::from_secs(300);

/// Suffix of the reserve file, which is free space rather than content.
const RESERVE_SUFFIX: &str = "ballast";

/// Runs all benchmarks, or the benchmarks selected by `--only`.
pub(crate) fn run_benchmarks(args: &Args) -> Result<PartReport> {
    let mut tally = json!({"part": "bench"});
    let wanted = |part: &str| !args.has_option("only") || args.has_option(part);
    if wanted("producers") {
        crate::merge_objects(
            &mut tally,
            measure_producers(
                args.number_option("seconds", 3)?,
                args.number_option("runs", 3)?,
            )?,
        );
    }
    if wanted("single") {
        crate::merge_objects(&mut tally, measure_single()?);
    }
    if wanted("open") {
        crate::merge_objects(
            &mut tally,
            measure_opening(args.number_option("live", 100_000)?)?,
        );
    }
    if wanted("churn") {
        crate::merge_objects(
            &mut tally,
            measure_churn(args.number_option("churn", 1_000_000)?)?,
        );
    }
    if wanted("syncs") {
        crate::merge_objects(&mut tally, count_syncs()?);
    }
    Ok(PartReport {
        tally,
        is_passed: true,
    })
}

/// Returns a draft of a producer; numbering as in the crash test is not needed.
fn message_draft(lane: &LaneName, number: u64) -> MessageDraft {
    MessageDraft {
        lane: lane.clone(),
        dedupe: plan::number_dedupe_id(number),
        digest: plan::number_digest(number),
        body: plan::number_body(number),
        ttl: None,
        lease: None,
    }
}

/// Publishes a message, leases and acks the oldest; returns the publication time in nanoseconds.
async fn publish_and_ack(
    journal: &dyn Journal,
    clock: Clock,
    lane: &LaneName,
    number: u64,
) -> Result<u64> {
    let draft = message_draft(lane, number);
    let start = instant();
    journal.publish(draft, clock.timestamps()).await?;
    let took = u64::try_from(start.elapsed().as_nanos())?;
    let leased = journal
        .lease(lane, LeaseOrder::Strict, 1, LEASE_TIME, clock.timestamps())
        .await?;
    let delivery = leased.first().context("nothing was handed out")?;
    journal
        .ack(delivery.receipt, None, clock.timestamps())
        .await?;
    Ok(took)
}

/// Runs concurrent producers until done; returns all latencies, sorted.
async fn run_producers(
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
            let lane = LaneName::new(&format!("bench/{producer}"))?;
            let mut took = Vec::new();
            for nth in 0..messages {
                if start.elapsed() >= time {
                    break;
                }
                let number = plan::message_number(2, producer, nth);
                took.push(publish_and_ack(journal.as_ref(), clock, &lane, number).await?);
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

/// Measures many producers: operations per second and publication latency.
fn measure_producers(seconds: u64, runs: usize) -> Result<Value> {
    let mut figures = Vec::new();
    for _ in 0..runs {
        let dir = tempfile::tempdir()?;
        let journal = open::open_journal(dir.path())?;
        let time = Duration::from_secs(seconds);
        let start = instant();
        let took = open::block_on(run_producers(&journal, Clock::new(), u64::MAX, time))??;
        let ops = 2.0 * took.len() as f64 / start.elapsed().as_secs_f64();
        open::block_on(journal.close())?;
        figures.push((ops, percentile_ms(&took, 50), percentile_ms(&took, 99)));
    }
    figures.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ops, p50, p99) = *figures.get(runs / 2).context("nothing was measured")?;
    Ok(json!({
        "ops_per_second": ops, "enqueue_p50_ms": p50, "enqueue_p99_ms": p99,
        "producers": PRODUCERS, "all_runs": figures,
    }))
}

/// Measures a single producer against a plain append and sync, alternating.
fn measure_single() -> Result<Value> {
    let dir = tempfile::tempdir()?;
    let mut file = File::create(dir.path().join("floor"))?;
    let state = dir.path().join("state");
    open::create_private_dir(&state)?;
    let journal = open::open_journal(&state)?;
    let clock = Clock::new();
    let lane = LaneName::new("bench/one")?;
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    open::block_on(async {
        for nth in 0..PAIRS {
            let body = plan::number_body(nth);
            let start = instant();
            file.write_all(&body)?;
            file.sync_data()?;
            floor.push(u64::try_from(start.elapsed().as_nanos())?);
            let draft = message_draft(&lane, nth);
            let start = instant();
            journal.publish(draft, clock.timestamps()).await?;
            ours.push(u64::try_from(start.elapsed().as_nanos())?);
        }
        journal.close().await;
        anyhow::Ok(())
    })??;
    floor.sort_unstable();
    ours.sort_unstable();
    Ok(json!({
        "disk_p50_ms": percentile_ms(&floor, 50), "disk_p99_ms": percentile_ms(&floor, 99),
        "one_p50_ms": percentile_ms(&ours, 50), "one_p99_ms": percentile_ms(&ours, 99),
        "one_to_disk": percentile_ms(&ours, 50) / percentile_ms(&floor, 50),
        "body_bytes": BODY_BYTES,
    }))
}

/// Measures opening a journal with many live rows after its writer was killed.
fn measure_opening(live: u64) -> Result<Value> {
    let dir = tempfile::tempdir()?;
    let mut expected = ExpectedState::default();
    let options = ["--fill".to_owned(), live.to_string()];
    let mut writer = WriterProcess::start(dir.path(), &options, &[])?;
    writer.wait_finished(&mut expected, FILL_PATIENCE)?;
    writer.kill_writer(&mut expected)?;
    let (bytes, _) = directory_bytes(dir.path())?;
    let start = instant();
    let journal = open::open_journal(dir.path())?;
    let open_ms = start.elapsed().as_secs_f64() * 1_000.0;
    let found = open::block_on(async {
        let lanes = journal
            .lane_stats(plan::PREFIX, Clock::new().timestamps())
            .await;
        journal.close().await;
        lanes
    })??;
    let waiting: u64 = found.iter().map(|lane| lane.queued).sum();
    ensure!(waiting == live, "{waiting} of {live} are there");
    let start = instant();
    let journal = open::open_journal(dir.path())?;
    let again_ms = start.elapsed().as_secs_f64() * 1_000.0;
    open::block_on(journal.close())?;
    Ok(json!({
        "open_live_rows": live, "open_ms": open_ms, "open_clean_ms": again_ms,
        "open_bytes": bytes,
    }))
}

/// Publishes messages and then waits to be killed.
pub(crate) async fn fill_journal(writer: &Arc<LoadWriter>, live: u64) -> Result<()> {
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for producer in 0..PRODUCERS {
        let writer = Arc::clone(writer);
        tasks.spawn(async move {
            let lane = LaneName::new(&format!("{}{producer}", plan::PREFIX))?;
            for nth in (producer..live).step_by(usize::try_from(PRODUCERS)?) {
                let draft = message_draft(&lane, plan::message_number(1, producer, nth));
                let given = writer
                    .journal
                    .publish(draft, writer.clock.timestamps())
                    .await?;
                ensure!(
                    matches!(given, PublishOutcome::Stored { .. }),
                    "{nth} was known before"
                );
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a producer panicked")??;
    }
    writer
        .records
        .write_record(OpPhase::Finished, Op::None, 0, 0)?;
    std::future::pending().await
}

/// Measures disk usage after many short-lived messages and a few long-lived messages.
fn measure_churn(messages: u64) -> Result<Value> {
    let dir = tempfile::tempdir()?;
    let journal = open::open_journal(dir.path())?;
    let clock = Clock::new();
    let start = instant();
    open::block_on(async {
        for nth in 0..CHURN_LIVE {
            let producer = nth % PRODUCERS;
            let lane = LaneName::new(&format!("bench/{producer}"))?;
            let number = plan::message_number(1, producer, nth);
            journal
                .publish(message_draft(&lane, number), clock.timestamps())
                .await?;
        }
        let each = messages.div_ceil(PRODUCERS);
        run_producers(&journal, clock, each, Duration::MAX).await
    })??;
    let seconds = start.elapsed().as_secs_f64();
    let (open_bytes, _) = directory_bytes(dir.path())?;
    open::block_on(journal.close())?;
    drop(journal);
    let (bytes, ballast) = directory_bytes(dir.path())?;
    Ok(json!({
        "churn_messages": messages, "churn_live": CHURN_LIVE, "churn_seconds": seconds,
        "churn_messages_per_second": messages as f64 / seconds,
        "churn_open_bytes": open_bytes, "churn_bytes": bytes, "ballast_bytes": ballast,
    }))
}

/// Counts the syncs per commit of a single producer.
fn count_syncs() -> Result<Value> {
    let home = tempfile::tempdir()?;
    let shim = Shim::compile(home.path())?;
    let state = home.path().join("state");
    open::create_private_dir(&state)?;
    let count = |commits: u64| -> Result<u64> {
        let told = home.path().join("count");
        let options = ["--commits".to_owned(), commits.to_string()];
        let shim = shim.environment(&state, ShimFault::Counted(&told));
        let status = WriterProcess::start(&state, &options, &shim)?
            .wait_exit(&mut ExpectedState::default())?;
        ensure!(status.success(), "the writer failed ({status})");
        let said = fs::read_to_string(told).context("the shim counted nothing")?;
        Ok(said.trim().parse()?)
    };
    // The difference excludes the cost of creating, opening and closing the file.
    count(1)?;
    let (few, many) = (count(1)?, count(COUNTED_COMMITS + 1)?);
    Ok(json!({"syncs_per_commit": (many - few) as f64 / COUNTED_COMMITS as f64}))
}

/// Publishes messages in sequence and closes the journal.
pub(crate) async fn publish_commits(writer: &LoadWriter, commits: u64) -> Result<()> {
    let lane = LaneName::new(&format!("{}commits", plan::PREFIX))?;
    let run = u64::from(std::process::id());
    for nth in 0..commits {
        let draft = message_draft(&lane, plan::message_number(run, 0, nth));
        writer
            .journal
            .publish(draft, writer.clock.timestamps())
            .await?;
    }
    writer.journal.close().await;
    Ok(())
}

/// Returns a percentile in milliseconds.
fn percentile_ms(sorted: &[u64], percent: usize) -> f64 {
    let nth = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted
        .get(nth)
        .map_or(f64::NAN, |nanos| *nanos as f64 / 1e6)
}

/// Returns the bytes of a directory without the reserve, and the bytes of the reserve.
fn directory_bytes(dir: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut ballast) = (0, 0);
    for file in fs::read_dir(dir)? {
        let file = file?;
        let about = file.metadata()?;
        match file.file_name().to_string_lossy().contains(RESERVE_SUFFIX) {
            true => ballast += about.len(),
            false => bytes += about.len(),
        }
    }
    Ok((bytes, ballast))
}
