//! Damage of every kind is found and named.

use std::path::Path;

use rusqlite::Connection;

use super::*;

/// A row in the middle of the file that is damaged.
const AT: u64 = 20;

/// Writes a trail of one file, does `damage` to it with SQL, and returns what is found.
async fn found(damage: &str) -> Option<(u64, Damage)> {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path(), 50, Limits::default()).await;
    edit(directory.path(), damage);
    let broken = verify(directory.path(), None).unwrap().broken;
    broken.map(|broken| (broken.seq, broken.damage))
}

fn edit(directory: &Path, sql: &str) {
    let file = files::list(directory).unwrap().pop().unwrap();
    let connection = Connection::open(&file.path).unwrap();
    connection.execute_batch(sql).unwrap();
}

#[tokio::test]
async fn sec_50_the_first_row_that_was_changed_removed_moved_or_added_is_named() {
    let swap = "
        CREATE TEMP TABLE t AS SELECT * FROM rows WHERE seq IN (20, 21);
        DELETE FROM rows WHERE seq IN (20, 21);
        INSERT INTO rows SELECT 41 - seq, body, hash FROM t;";
    let shift_down = "
        DELETE FROM rows WHERE seq = 20;
        UPDATE rows SET seq = seq - 1 WHERE seq > 20;";
    let shift_up = "
        UPDATE rows SET seq = -(seq + 1) WHERE seq >= 20;
        UPDATE rows SET seq = -seq WHERE seq < 0;
        INSERT INTO rows SELECT 20, replace(body, '\"seq\":10,', '\"seq\":20,'), hash
            FROM rows WHERE seq = 10;";
    let far = "
        CREATE TEMP TABLE t AS SELECT * FROM rows WHERE seq IN (20, 40);
        DELETE FROM rows WHERE seq IN (20, 40);
        INSERT INTO rows SELECT 60 - seq, body, hash FROM t;";
    let cases = [
        (
            "UPDATE rows SET body = replace(body, 'w17', 'w18') WHERE seq = 20",
            Damage::Changed,
        ),
        ("UPDATE rows SET body = 'x' WHERE seq = 20", Damage::Changed),
        (
            "UPDATE rows SET hash = zeroblob(32) WHERE seq = 20",
            Damage::Changed,
        ),
        (
            "UPDATE rows SET hash = x'00' WHERE seq = 20",
            Damage::Changed,
        ),
        (
            "UPDATE rows SET body = hex(zeroblob(2000000)) WHERE seq = 20",
            Damage::Changed,
        ),
        ("DELETE FROM rows WHERE seq = 20", Damage::Removed),
        (shift_down, Damage::Removed),
        (swap, Damage::Reordered),
        (far, Damage::Removed),
        (shift_up, Damage::Inserted),
        ("DELETE FROM rows WHERE seq >= 20", Damage::Truncated),
    ];
    for (sql, damage) in cases {
        assert_eq!(found(sql).await, Some((AT, damage)), "{sql}");
    }
    assert_eq!(
        found("DELETE FROM rows WHERE seq = 1").await,
        Some((1, Damage::Removed))
    );
    assert_eq!(
        found("DELETE FROM rows").await,
        Some((1, Damage::Truncated))
    );
    assert_eq!(
        found("DROP VIEW said; DROP TABLE rows").await,
        Some((1, Damage::Truncated))
    );
    assert_eq!(found("SELECT 1").await, None);
}

/// Counts every hash anew from a row on, as somebody would who has all files in hand.
fn forge(directory: &Path, from: u64) -> Head {
    let file = files::list(directory).unwrap().pop().unwrap();
    let connection = Connection::open(&file.path).unwrap();
    let mut head = Head::default();
    let rows: Vec<(u64, String, Vec<u8>)> = {
        let mut query = connection
            .prepare("SELECT * FROM rows ORDER BY seq")
            .unwrap();
        let rows = query.query_map([], |row| {
            Ok((
                row.get::<_, i64>(0)?.cast_unsigned(),
                row.get(1)?,
                row.get(2)?,
            ))
        });
        rows.unwrap().map(Result::unwrap).collect()
    };
    for (seq, body, _) in rows {
        head = head.then(body.as_bytes());
        if seq >= from {
            let hash = &head.hash.0[..];
            let set = "UPDATE rows SET hash = ?1 WHERE seq = ?2";
            connection.execute(set, (hash, seq.cast_signed())).unwrap();
        }
    }
    head
}

#[tokio::test]
async fn a_chain_that_was_counted_anew_is_found_by_a_head_that_was_noted() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    written(directory, 50, Limits::default()).await;
    let noted = verify(directory, None).unwrap().head;
    edit(
        directory,
        "UPDATE rows SET body = replace(body, 'w17', 'w18') WHERE seq = 20",
    );
    let forged = forge(directory, AT);
    let broken = verify(directory, None).unwrap().broken.unwrap();
    assert_eq!(
        (broken.seq, broken.damage),
        (noted.seq, Damage::Rewritten),
        "by the anchor"
    );
    // Whoever writes the anchor as well is found only by what they cannot reach.
    let (mut anchor, said) = anchor::Anchor::open(directory).unwrap();
    let said = anchor::Anchored {
        head: forged,
        ..said.unwrap()
    };
    anchor.write(said).unwrap();
    anchor.write(said).unwrap();
    assert_eq!(verify(directory, None).unwrap().broken, None);
    let broken = verify(directory, Some(noted)).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (noted.seq, Damage::Rewritten));
    let further = Head {
        seq: noted.seq + 1,
        ..noted
    };
    let broken = verify(directory, Some(further)).unwrap().broken.unwrap();
    assert_eq!(
        (broken.seq, broken.damage),
        (noted.seq + 1, Damage::Truncated)
    );
}

#[tokio::test]
async fn a_trail_that_was_cut_goes_on_and_the_hole_stays_visible() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    written(directory, 50, Limits::default()).await;
    edit(directory, "DELETE FROM rows WHERE seq >= 20");
    written(directory, 5, Limits::default()).await;
    let broken = verify(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (AT, Damage::Removed));
    let gap = rows(directory)
        .into_iter()
        .find(|row| row.kind == Kind::Gap)
        .unwrap();
    assert_eq!(gap.reason.as_deref(), Some("rows 20 to 53 are missing"));
    assert_eq!(
        gap.seq, 55,
        "the numbers of the rows that are gone are not given out again"
    );
}

#[tokio::test]
async fn a_last_row_that_was_forged_stays_visible_when_the_trail_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    written(directory, 50, Limits::default()).await;
    let last = verify(directory, None).unwrap().head.seq;
    edit(
        directory,
        "UPDATE rows SET body = replace(body, 'w17', 'w18') WHERE seq = 20",
    );
    forge(directory, AT);
    written(directory, 5, Limits::default()).await;
    let broken = verify(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (last, Damage::Rewritten));
}

#[tokio::test]
async fn a_file_or_the_head_that_is_gone_is_named() {
    let limits = Limits {
        file_bytes_max: 20_000,
        files_max: 9,
        ..Limits::default()
    };
    for nth in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        written(directory, 200, limits).await;
        let files = files::list(directory).unwrap();
        assert!(files.len() >= 3, "{files:?}");
        let nth = if nth == 2 { files.len() - 1 } else { nth };
        files::remove(&files[nth]).unwrap();
        let damage = if nth == files.len() - 1 {
            Damage::Truncated
        } else {
            Damage::Removed
        };
        let broken = verify(directory, None).unwrap().broken.unwrap();
        assert_eq!((broken.seq, broken.damage), (files[nth].first, damage));
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    written(directory, 20, limits).await;
    std::fs::remove_file(directory.join(anchor::NAME)).unwrap();
    let broken = verify(directory, None).unwrap().broken.unwrap();
    assert_eq!(broken.damage, Damage::Unanchored);
    written(directory, 1, limits).await;
    let gap = rows(directory)
        .into_iter()
        .find(|row| row.kind == Kind::Gap)
        .unwrap();
    assert_eq!(
        gap.reason.as_deref(),
        Some("the head beside the files was missing")
    );
}

#[tokio::test]
async fn missing_trail_is_not_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    std::fs::create_dir(&path).unwrap();
    written(&path, 20, Limits::default()).await;
    let noted = verify(&path, None).unwrap();
    assert_eq!(noted.broken, None);
    std::fs::remove_dir_all(&path).unwrap();
    for expect in [None, Some(noted.head)] {
        let broken = verify(&path, expect).unwrap().broken.unwrap();
        assert_eq!((broken.seq, broken.damage), (1, Damage::Missing));
    }
    std::fs::create_dir(&path).unwrap();
    let broken = verify(&path, None).unwrap().broken.unwrap();
    assert_eq!(broken.damage, Damage::Missing);
}

/// Everything that can be read, row by row.
fn text(directory: &Path) -> Vec<RowText> {
    let mut rows = Vec::new();
    let _unreadable = span(directory, &Filter::default(), |row| {
        rows.push(row.clone());
        Ok(())
    });
    rows
}

#[tokio::test]
async fn a_flipped_bit_is_named_or_has_changed_nothing_that_is_read() {
    let whole = tempfile::tempdir().unwrap();
    written(whole.path(), 150, Limits::default()).await;
    let file = files::list(whole.path()).unwrap().pop().unwrap();
    let bytes = std::fs::read(&file.path).unwrap();
    let (rows, verdict) = (text(whole.path()), verify(whole.path(), None).unwrap());
    let (mut state, mut named) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    for _ in 0..500 {
        // A number that looks random and is the same in every run.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bit = usize::try_from(state >> 20).unwrap() % (bytes.len() * 8);
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(
            whole.path().join(anchor::NAME),
            copy.path().join(anchor::NAME),
        )
        .unwrap();
        std::fs::write(copy.path().join(file.shown()), &flipped).unwrap();
        let seen = verify(copy.path(), None).unwrap();
        match seen.broken {
            None => assert_eq!((text(copy.path()), seen.head), (rows.clone(), verdict.head)),
            Some(broken) => {
                assert!(
                    broken.seq >= 1 && broken.seq <= verdict.head.seq,
                    "{broken:?}"
                );
                named += 1;
            }
        }
    }
    assert!(named > 200, "{named} of 500");
}
