//! Retention by age, and merged reading of two rings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a clock moved by the test.
fn movable_clock() -> (Arc<AtomicU64>, UnixClock) {
    let time = Arc::new(AtomicU64::new(1_000));
    let wall = Arc::clone(&time);
    (time, Arc::new(move || wall.load(Ordering::Relaxed)))
}

/// Appends rows with the time of a clock.
fn append_at(trail: &FileAuditTrail, time: &AtomicU64, words: std::ops::Range<u64>) {
    let at_ms = time.load(Ordering::Relaxed);
    for word in words {
        trail.append(word_row(&format!("w{word}"), at_ms), LongBodies::default());
    }
}

async fn fill_trail(trail: &FileAuditTrail, time: &AtomicU64, words: u64) {
    for start in (0..words).step_by(50) {
        append_at(trail, time, start..start + 50);
        trail.flush().await;
    }
}

#[tokio::test]
async fn sec_97_young_rows_kept_up_to_limit() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (time, wall) = movable_clock();
    let limits = AuditLimits {
        file_bytes_max: FILE_BYTES,
        files_max: 1,
        files_hard_max: 4,
        age_min: HOUR,
        ..AuditLimits::default()
    };
    let trail = FileAuditTrail::open(directory, limits, wall).unwrap();
    fill_trail(&trail, &time, 200).await;
    let seen = verify_trail(directory, None).unwrap();
    assert!(seen.files > 1 && seen.evicted == 0, "{seen:?}");
    // Beyond the hard limit the oldest rows are evicted, and the eviction is recorded.
    fill_trail(&trail, &time, 1_000).await;
    // Files evicted by a batch are gone when the next batch is written.
    fill_trail(&trail, &time, 1).await;
    let seen = verify_trail(directory, None).unwrap();
    assert_eq!((seen.files, seen.broken.clone()), (4, None));
    assert_eq!(seen.evicted, seen.first_seq - 1);
    assert!(
        seen.evicted > 0 && seen.evicted_early == seen.evicted,
        "{seen:?}"
    );
    // Rows beyond the minimum age make room for new rows.
    time.fetch_add(2 * 3_600_000, Ordering::Relaxed);
    fill_trail(&trail, &time, 200).await;
    let later = verify_trail(directory, None).unwrap();
    assert_eq!(later.evicted_early, seen.evicted_early);
    assert!(later.evicted > seen.evicted, "{later:?}");
    trail.close().await;
    let trail = FileAuditTrail::open(directory, limits, movable_clock().1).unwrap();
    trail.close().await;
    let again = verify_trail(directory, None).unwrap();
    assert_eq!(
        again.evicted_early, seen.evicted_early,
        "it outlasts a restart"
    );
}

#[tokio::test]
async fn sec_97_expired_rows_are_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (time, wall) = movable_clock();
    let limits = AuditLimits {
        age_max: Some(8 * HOUR),
        age_min: 100 * HOUR,
        ..AuditLimits::default()
    };
    let trail = FileAuditTrail::open(directory, limits, wall).unwrap();
    for _ in 0..20 {
        fill_trail(&trail, &time, 50).await;
        time.fetch_add(2 * 3_600_000, Ordering::Relaxed);
    }
    let seen = verify_trail(directory, None).unwrap();
    assert!(seen.evicted > 500 && seen.broken.is_none(), "{seen:?}");
    assert_eq!(seen.evicted_early, 0, "this was their time");
    let oldest = read_rows(directory)[0].at_ms;
    assert!(time.load(Ordering::Relaxed) - oldest <= 12 * 3_600_000);
}

#[tokio::test]
async fn two_rings_merge_by_time() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::create_dir(denials_directory(directory)).unwrap();
    let (time, wall) = movable_clock();
    let refused = AuditLimits {
        ring: Some(DENIALS_RING),
        ..AuditLimits::default()
    };
    let calls = FileAuditTrail::open(directory, AuditLimits::default(), Arc::clone(&wall)).unwrap();
    let refusals = FileAuditTrail::open(&denials_directory(directory), refused, wall).unwrap();
    for nth in 0..10 {
        time.fetch_add(1, Ordering::Relaxed);
        let ring = if nth % 3 == 0 { &refusals } else { &calls };
        append_at(ring, &time, nth..nth + 1);
        ring.flush().await;
    }
    let words = |rows: &[RowText]| -> Vec<String> {
        let rows = rows
            .iter()
            .map(|row| serde_json::from_str::<AuditRow<'_>>(&row.body).unwrap());
        rows.filter_map(|row| row.name.map(Into::into)).collect()
    };
    let all: Vec<_> = (0..10).map(|nth| format!("w{nth}")).collect();
    let filter = AuditFilter::default();
    let (mut after, mut seen) = (AuditCursor::default(), Vec::new());
    loop {
        let page = MergedPage::read_page(directory, &filter, after, 3).unwrap();
        seen.extend(words(&page.rows));
        if page.next == after {
            break;
        }
        after = page.next.to_string().parse().unwrap();
    }
    assert_eq!(seen, all);
    let newest = MergedPage::read_newest(directory, &filter, 4).unwrap();
    assert_eq!(
        (words(&newest.rows), newest.next),
        (all[6..].to_vec(), after)
    );
    let mut spanned = Vec::new();
    let count = MergedPage::export_rows(directory, &filter, |row| {
        spanned.push(row.clone());
        Ok(())
    });
    assert_eq!(count.unwrap(), spanned.len() as u64);
    assert_eq!(words(&spanned), all);
    assert_eq!("7".parse::<AuditCursor>().unwrap().denials, u64::MAX);
    assert!("7.".parse::<AuditCursor>().is_err());
    let seen = RingReports::verify_rings(directory, ExpectedHeads::default()).unwrap();
    assert!(seen.is_intact() && seen.denials.rows == 5, "{seen:?}");
}
