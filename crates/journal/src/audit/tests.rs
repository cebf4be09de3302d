//! What a trail promises, on real files.

mod damage;
mod keep;
mod trouble;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use super::*;

/// A note that says one word.
type Word = String;

fn render() -> Render<Word> {
    Arc::new(|word: &Word| {
        let mut row = Row::new(Kind::Call, 7);
        row.name = Some(word.as_str().into());
        row.principal = Some("ann".into());
        row
    })
}

fn wall() -> Wall {
    Arc::new(|| 1_000)
}

fn open(directory: &Path, limits: Limits) -> Trail<Word> {
    Trail::open(directory, limits, wall(), render()).unwrap()
}

/// Notes so many words.
fn note(trail: &Trail<Word>, words: std::ops::Range<u64>) {
    for word in words {
        trail.note(format!("w{word}"), 10);
    }
}

/// Writes a trail of so many words, and closes it.
async fn written(directory: &Path, words: u64, limits: Limits) {
    let trail = open(directory, limits);
    for start in (0..words).step_by(50) {
        note(&trail, start..(start + 50).min(words));
        trail.flush().await;
    }
    trail.close().await;
}

fn rows(directory: &Path) -> Vec<Row<'static>> {
    let mut rows = Vec::new();
    span(directory, &Filter::default(), |row| {
        rows.push(serde_json::from_str(&row.body).unwrap());
        Ok(())
    })
    .unwrap();
    rows
}

fn names(directory: &Path) -> Vec<String> {
    let rows = rows(directory).into_iter();
    rows.filter_map(|row| row.name.map(Into::into)).collect()
}

#[tokio::test]
async fn a_trail_goes_on_where_it_ended_and_is_ours_alone() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    written(directory, 60, Limits::default()).await;
    let before = verify(directory, None).unwrap();
    assert_eq!(
        (before.rows, before.broken),
        (63, None),
        "file, started, 60, stopped"
    );
    let trail = open(directory, Limits::default());
    note(&trail, 60..70);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(
        (health.lost, health.waiting, health.trouble.clone()),
        (0, 0, None)
    );
    assert_eq!(*trail.heads().borrow(), health.head.seq);
    // Read while it is written to.
    let after = verify(directory, Some(before.head)).unwrap();
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
    assert_eq!(names(directory), words);
}

#[tokio::test]
async fn the_chain_goes_on_over_files_and_the_oldest_are_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let limits = Limits {
        file_bytes_max: 20_000,
        files_max: 3,
        ..Limits::default()
    };
    written(directory, 1_000, limits).await;
    let files = files::list(directory).unwrap();
    assert_eq!(files.len(), 3, "{files:?}");
    let verdict = verify(directory, None).unwrap();
    assert_eq!(
        (verdict.broken, verdict.files, verdict.first),
        (None, 3, files[0].first)
    );
    assert!(verdict.first > 1);
    let rows = rows(directory);
    let firsts: Vec<_> = rows.iter().filter(|row| row.kind == Kind::File).collect();
    assert_eq!(firsts.len(), 3);
    assert!(
        firsts
            .iter()
            .all(|row| row.prev.is_some() && row.kept_from.is_some())
    );
    // A row that is not kept any more can neither be proved nor refuted.
    let old = Head {
        seq: 1,
        ..Head::default()
    };
    let asked = verify(directory, Some(old)).unwrap();
    assert_eq!(asked.broken.unwrap().damage, Damage::NotKept);
}

#[tokio::test]
async fn rows_are_found_by_number_kind_person_and_time() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let limits = Limits {
        file_bytes_max: 20_000,
        ..Limits::default()
    };
    written(directory, 300, limits).await;
    let all = Filter::default();
    let calls = Filter {
        kind: Some(Kind::Call),
        principal: Some("ann".to_owned()),
        from_ms: Some(7),
        to_ms: Some(8),
        ..Filter::default()
    };
    let whole = page(directory, &calls, 0, 1_000).unwrap();
    let newest = newest(directory, &calls, 2).unwrap();
    assert_eq!(
        (whole.rows.len(), &whole.rows[298..]),
        (300, &newest.rows[..])
    );
    assert_eq!(newest.next, whole.next);
    let rest = page(directory, &all, newest.rows[0].seq, 10).unwrap();
    assert_eq!((&rest.rows[0], rest.next), (&newest.rows[1], newest.next));
    let nobody = Filter {
        principal: Some("bob".to_owned()),
        ..Filter::default()
    };
    let none = page(directory, &nobody, 0, 10).unwrap();
    assert_eq!((none.rows.len(), none.next), (0, newest.next));
    let line: serde_json::Value = serde_json::from_str(&newest.rows[0].line()).unwrap();
    assert_eq!(line["hash"], newest.rows[0].hash.to_string());
}

#[test]
fn a_trail_in_memory_is_bound_in_the_same_way() {
    let memory = Memory::new(render());
    memory.note(&"a".to_owned());
    memory.note(&"b".to_owned());
    assert_eq!(memory.rows()[1].name.as_deref(), Some("b"));
    let head: Head = memory.head().to_string().parse().unwrap();
    assert_eq!((head, head.seq), (memory.head(), 2));
    assert!("2:abc".parse::<Head>().is_err() && "x".parse::<Head>().is_err());
}
