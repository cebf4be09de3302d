//! What is kept by its age, and what two rings are to a reader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// A clock that a test moves.
fn clock() -> (Arc<AtomicU64>, Wall) {
    let time = Arc::new(AtomicU64::new(1_000));
    let wall = Arc::clone(&time);
    (time, Arc::new(move || wall.load(Ordering::Relaxed)))
}

/// Renders a word as noted at the time of a clock.
fn at(time: &Arc<AtomicU64>) -> Render<Word> {
    let time = Arc::clone(time);
    Arc::new(move |word: &Word| {
        let mut row = Row::new(Kind::Call, time.load(Ordering::Relaxed));
        row.name = Some(word.as_str().into());
        row
    })
}

async fn fill(trail: &Trail<Word>, words: u64) {
    for start in (0..words).step_by(50) {
        note(trail, start..start + 50);
        trail.flush().await;
    }
}

#[tokio::test]
async fn sec_97_young_rows_are_kept_up_to_a_hard_limit() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (time, wall) = clock();
    let limits = Limits {
        file_bytes_max: 20_000,
        files_max: 1,
        files_hard_max: 4,
        age_min: HOUR,
        ..Limits::default()
    };
    let trail = Trail::open(directory, limits, wall, at(&time)).unwrap();
    fill(&trail, 200).await;
    let seen = verify(directory, None).unwrap();
    assert!(seen.files > 1 && seen.let_go == 0, "{seen:?}");
    // More than there is room for: the oldest go, and this is said.
    fill(&trail, 1_000).await;
    // What a batch lets go is gone when the next one is written.
    fill(&trail, 1).await;
    let seen = verify(directory, None).unwrap();
    assert_eq!((seen.files, seen.broken.clone()), (4, None));
    assert_eq!(seen.let_go, seen.first - 1);
    assert!(
        seen.let_go > 0 && seen.let_go_early == seen.let_go,
        "{seen:?}"
    );
    // Rows that are old enough make room for others.
    time.fetch_add(2 * 3_600_000, Ordering::Relaxed);
    fill(&trail, 200).await;
    let later = verify(directory, None).unwrap();
    assert_eq!(later.let_go_early, seen.let_go_early);
    assert!(later.let_go > seen.let_go, "{later:?}");
    trail.close().await;
    let trail = Trail::open(directory, limits, clock().1, at(&time)).unwrap();
    trail.close().await;
    let again = verify(directory, None).unwrap();
    assert_eq!(
        again.let_go_early, seen.let_go_early,
        "it outlasts a restart"
    );
}

#[tokio::test]
async fn sec_97_rows_that_are_too_old_are_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (time, wall) = clock();
    let limits = Limits {
        age_max: Some(8 * HOUR),
        age_min: 100 * HOUR,
        ..Limits::default()
    };
    let trail = Trail::open(directory, limits, wall, at(&time)).unwrap();
    for _ in 0..20 {
        fill(&trail, 50).await;
        time.fetch_add(2 * 3_600_000, Ordering::Relaxed);
    }
    let seen = verify(directory, None).unwrap();
    assert!(seen.let_go > 500 && seen.broken.is_none(), "{seen:?}");
    assert_eq!(seen.let_go_early, 0, "this was their time");
    let oldest = rows(directory)[0].at_ms;
    assert!(time.load(Ordering::Relaxed) - oldest <= 12 * 3_600_000);
}

#[tokio::test]
async fn two_rings_are_read_as_one_in_the_order_of_time() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::create_dir(denials(directory)).unwrap();
    let (time, wall) = clock();
    let refused = Limits {
        ring: Some(DENIALS),
        ..Limits::default()
    };
    let calls = Trail::open(directory, Limits::default(), Arc::clone(&wall), at(&time)).unwrap();
    let refusals = Trail::open(&denials(directory), refused, wall, at(&time)).unwrap();
    for nth in 0..10 {
        time.fetch_add(1, Ordering::Relaxed);
        let ring = if nth % 3 == 0 { &refusals } else { &calls };
        note(ring, nth..nth + 1);
        ring.flush().await;
    }
    let words = |rows: &[RowText]| -> Vec<String> {
        let rows = rows
            .iter()
            .map(|row| serde_json::from_str::<Row<'_>>(&row.body).unwrap());
        rows.filter_map(|row| row.name.map(Into::into)).collect()
    };
    let all: Vec<_> = (0..10).map(|nth| format!("w{nth}")).collect();
    let filter = Filter::default();
    let (mut after, mut seen) = (Cursor::default(), Vec::new());
    loop {
        let page = Merged::page(directory, &filter, after, 3).unwrap();
        seen.extend(words(&page.rows));
        if page.next == after {
            break;
        }
        after = page.next.to_string().parse().unwrap();
    }
    assert_eq!(seen, all);
    let newest = Merged::newest(directory, &filter, 4).unwrap();
    assert_eq!(
        (words(&newest.rows), newest.next),
        (all[6..].to_vec(), after)
    );
    let mut spanned = Vec::new();
    let count = Merged::span(directory, &filter, |row| {
        spanned.push(row.clone());
        Ok(())
    });
    assert_eq!(count.unwrap(), spanned.len() as u64);
    assert_eq!(words(&spanned), all);
    assert_eq!("7".parse::<Cursor>().unwrap().denials, u64::MAX);
    assert!("7.".parse::<Cursor>().is_err());
    let seen = Verdicts::verify(directory, ExpectedHeads::default()).unwrap();
    assert!(seen.is_whole() && seen.denials.rows == 5, "{seen:?}");
}
