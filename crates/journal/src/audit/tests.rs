//! Guarantees of a trail, on real files.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use super::*;

mod damage;
mod failures;
mod retention;

/// Size of files that hold about two batches of fifty words.
const FILE_BYTES: u64 = 12_000;

fn word_row(word: &str, at_ms: u64) -> AuditRow<'_> {
    let mut row = AuditRow::new(AuditRowKind::Call, at_ms);
    row.name = Some(word.into());
    row.principal = Some("ann".into());
    row
}

fn fixed_clock() -> UnixClock {
    Arc::new(|| 1_000)
}

fn open_trail(directory: &Path, limits: AuditLimits) -> FileAuditTrail {
    FileAuditTrail::open(directory, limits, fixed_clock()).unwrap()
}

/// Appends rows for a range of words.
fn append_words(trail: &FileAuditTrail, words: std::ops::Range<u64>) {
    for word in words {
        trail.append(word_row(&format!("w{word}"), 7), LongBodies::default());
    }
}

/// Writes a trail of `words` words and closes the trail.
async fn write_trail(directory: &Path, words: u64, limits: AuditLimits) {
    let trail = open_trail(directory, limits);
    for start in (0..words).step_by(50) {
        append_words(&trail, start..(start + 50).min(words));
        trail.flush().await;
    }
    trail.close().await;
}

fn read_rows(directory: &Path) -> Vec<AuditRow<'static>> {
    let mut rows = Vec::new();
    export_rows(directory, &AuditFilter::default(), |row| {
        rows.push(serde_json::from_str(&row.body).unwrap());
        Ok(())
    })
    .unwrap();
    rows
}

fn read_names(directory: &Path) -> Vec<String> {
    let rows = read_rows(directory).into_iter();
    rows.filter_map(|row| row.name.map(Into::into)).collect()
}

#[tokio::test]
async fn trail_resumes_at_end_with_private_files() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_trail(directory, 60, AuditLimits::default()).await;
    let before = verify_trail(directory, None).unwrap();
    assert_eq!(
        (before.rows, before.broken),
        (63, None),
        "file, started, 60, stopped"
    );
    let trail = open_trail(directory, AuditLimits::default());
    append_words(&trail, 60..70);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(
        (health.lost, health.queued, health.failure.clone()),
        (0, 0, None)
    );
    assert_eq!(*trail.head_updates().borrow(), health.head.seq);
    // Verified while the trail is open.
    let after = verify_trail(directory, Some(before.head)).unwrap();
    assert_eq!(
        (after.rows, after.head, after.broken),
        (74, health.head, None)
    );
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
    drop(trail);
    let words: Vec<_> = (0..70).map(|nth| format!("w{nth}")).collect();
    assert_eq!(read_names(directory), words);
}

#[tokio::test]
async fn chain_spans_files_and_evicts_oldest() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let limits = AuditLimits {
        file_bytes_max: FILE_BYTES,
        files_max: 3,
        ..AuditLimits::default()
    };
    write_trail(directory, 1_000, limits).await;
    let files = trail_files::list_files(directory).unwrap();
    assert_eq!(files.len(), 3, "{files:?}");
    let verdict = verify_trail(directory, None).unwrap();
    assert_eq!(
        (verdict.broken, verdict.files, verdict.first_seq),
        (None, 3, files[0].first_seq)
    );
    assert!(verdict.first_seq > 1);
    let rows = read_rows(directory);
    let firsts: Vec<_> = rows
        .iter()
        .filter(|row| row.kind == AuditRowKind::File)
        .collect();
    assert_eq!(firsts.len(), 3);
    assert!(
        firsts
            .iter()
            .all(|row| row.prev.is_some() && row.kept_from.is_some())
    );
    // An evicted row can neither be proved nor refuted.
    let old = ChainHead {
        seq: 1,
        ..ChainHead::default()
    };
    let asked = verify_trail(directory, Some(old)).unwrap();
    assert_eq!(asked.broken.unwrap().damage, RowDamage::NotKept);
}

#[tokio::test]
async fn rows_filter_by_seq_kind_principal_time() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let limits = AuditLimits {
        file_bytes_max: FILE_BYTES,
        ..AuditLimits::default()
    };
    write_trail(directory, 300, limits).await;
    let all = AuditFilter::default();
    let calls = AuditFilter {
        kind: Some(AuditRowKind::Call),
        principal: Some("ann".to_owned()),
        from_ms: Some(7),
        to_ms: Some(8),
        ..AuditFilter::default()
    };
    let whole = read_page(directory, &calls, 0, 1_000).unwrap();
    let newest = read_newest(directory, &calls, 2).unwrap();
    assert_eq!(
        (whole.rows.len(), &whole.rows[298..]),
        (300, &newest.rows[..])
    );
    assert_eq!(newest.next, whole.next);
    let rest = read_page(directory, &all, newest.rows[0].seq, 10).unwrap();
    assert_eq!((&rest.rows[0], rest.next), (&newest.rows[1], newest.next));
    let nobody = AuditFilter {
        principal: Some("bob".to_owned()),
        ..AuditFilter::default()
    };
    let none = read_page(directory, &nobody, 0, 10).unwrap();
    assert_eq!((none.rows.len(), none.next), (0, newest.next));
    let line: serde_json::Value = serde_json::from_str(&newest.rows[0].to_json_line()).unwrap();
    assert_eq!(line["hash"], newest.rows[0].hash.to_string());
}

#[test]
fn memory_trail_builds_hash_chain() {
    let memory = MemoryAuditTrail::default();
    memory.append(word_row("a", 7), LongBodies::default());
    memory.append(word_row("b", 8), LongBodies::default());
    assert_eq!(memory.rows()[1].name.as_deref(), Some("b"));
    let head: ChainHead = memory.head().to_string().parse().unwrap();
    assert_eq!((head, head.seq), (memory.head(), 2));
    assert!("2:abc".parse::<ChainHead>().is_err() && "x".parse::<ChainHead>().is_err());
}
