//! Detection of every kind of damage.

use std::path::Path;

use rusqlite::Connection;

use super::*;

/// Damaged row in the middle of the file.
const AT: u64 = 20;

/// Writes a trail of a single file, applies SQL, and returns the damage found.
async fn find_damage(damage: &str) -> Option<(u64, RowDamage)> {
    let directory = tempfile::tempdir().unwrap();
    write_trail(directory.path(), 50, AuditLimits::default()).await;
    edit_rows(directory.path(), damage);
    let broken = verify_trail(directory.path(), None).unwrap().broken;
    broken.map(|broken| (broken.seq, broken.damage))
}

fn edit_rows(directory: &Path, sql: &str) {
    let file = trail_files::list_files(directory).unwrap().pop().unwrap();
    let connection = Connection::open(&file.path).unwrap();
    connection.execute_batch(sql).unwrap();
}

#[tokio::test]
async fn sec_50_first_damaged_row_is_reported() {
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
            RowDamage::Changed,
        ),
        (
            "UPDATE rows SET body = 'x' WHERE seq = 20",
            RowDamage::Changed,
        ),
        (
            "UPDATE rows SET hash = zeroblob(32) WHERE seq = 20",
            RowDamage::Changed,
        ),
        (
            "UPDATE rows SET hash = x'00' WHERE seq = 20",
            RowDamage::Changed,
        ),
        (
            "UPDATE rows SET body = hex(zeroblob(2000000)) WHERE seq = 20",
            RowDamage::Changed,
        ),
        ("DELETE FROM rows WHERE seq = 20", RowDamage::Removed),
        (shift_down, RowDamage::Removed),
        (swap, RowDamage::Reordered),
        (far, RowDamage::Removed),
        (shift_up, RowDamage::Inserted),
        ("DELETE FROM rows WHERE seq >= 20", RowDamage::Truncated),
    ];
    for (sql, damage) in cases {
        assert_eq!(find_damage(sql).await, Some((AT, damage)), "{sql}");
    }
    assert_eq!(
        find_damage("DELETE FROM rows WHERE seq = 1").await,
        Some((1, RowDamage::Removed))
    );
    assert_eq!(
        find_damage("DELETE FROM rows").await,
        Some((1, RowDamage::Truncated))
    );
    assert_eq!(
        find_damage("DROP VIEW said; DROP TABLE rows").await,
        Some((1, RowDamage::Truncated))
    );
    assert_eq!(find_damage("SELECT 1").await, None);
}

/// Recomputes every hash from a row on, like an attacker with access to all files.
fn forge_hashes(directory: &Path, from: u64) -> ChainHead {
    let file = trail_files::list_files(directory).unwrap().pop().unwrap();
    let connection = Connection::open(&file.path).unwrap();
    let mut head = ChainHead::default();
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
        head = head.advance(body.as_bytes());
        if seq >= from {
            let hash = &head.hash.0[..];
            let set = "UPDATE rows SET hash = ?1 WHERE seq = ?2";
            connection.execute(set, (hash, seq.cast_signed())).unwrap();
        }
    }
    head
}

#[tokio::test]
async fn rehashed_chain_is_detected_by_recorded_head() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_trail(directory, 50, AuditLimits::default()).await;
    let noted = verify_trail(directory, None).unwrap().head;
    edit_rows(
        directory,
        "UPDATE rows SET body = replace(body, 'w17', 'w18') WHERE seq = 20",
    );
    let forged = forge_hashes(directory, AT);
    let broken = verify_trail(directory, None).unwrap().broken.unwrap();
    assert_eq!(
        (broken.seq, broken.damage),
        (noted.seq, RowDamage::Rewritten),
        "by the anchor"
    );
    // An attacker who also rewrites the anchor is detected only by a head stored elsewhere.
    let (mut anchor, said) = trail_files::AnchorFile::open(directory).unwrap();
    let said = trail_files::AnchorRecord {
        head: forged,
        ..said.unwrap()
    };
    anchor.write(said).unwrap();
    anchor.write(said).unwrap();
    assert_eq!(verify_trail(directory, None).unwrap().broken, None);
    let broken = verify_trail(directory, Some(noted))
        .unwrap()
        .broken
        .unwrap();
    assert_eq!(
        (broken.seq, broken.damage),
        (noted.seq, RowDamage::Rewritten)
    );
    let further = ChainHead {
        seq: noted.seq + 1,
        ..noted
    };
    let broken = verify_trail(directory, Some(further))
        .unwrap()
        .broken
        .unwrap();
    assert_eq!(
        (broken.seq, broken.damage),
        (noted.seq + 1, RowDamage::Truncated)
    );
}

#[tokio::test]
async fn truncated_trail_resumes_with_visible_gap() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_trail(directory, 50, AuditLimits::default()).await;
    edit_rows(directory, "DELETE FROM rows WHERE seq >= 20");
    write_trail(directory, 5, AuditLimits::default()).await;
    let broken = verify_trail(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (AT, RowDamage::Removed));
    let gap = read_rows(directory)
        .into_iter()
        .find(|row| row.kind == AuditRowKind::Gap)
        .unwrap();
    assert_eq!(gap.reason.as_deref(), Some("rows 20 to 53 are missing"));
    assert_eq!(
        gap.seq, 55,
        "the numbers of the rows that are gone are not given out again"
    );
}

#[tokio::test]
async fn forged_last_row_stays_visible_after_resume() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_trail(directory, 50, AuditLimits::default()).await;
    let last = verify_trail(directory, None).unwrap().head.seq;
    edit_rows(
        directory,
        "UPDATE rows SET body = replace(body, 'w17', 'w18') WHERE seq = 20",
    );
    forge_hashes(directory, AT);
    write_trail(directory, 5, AuditLimits::default()).await;
    let broken = verify_trail(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (last, RowDamage::Rewritten));
}

#[tokio::test]
async fn missing_file_or_anchor_is_reported() {
    let limits = AuditLimits {
        file_bytes_max: 20_000,
        files_max: 9,
        ..AuditLimits::default()
    };
    for nth in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        write_trail(directory, 200, limits).await;
        let files = trail_files::list_files(directory).unwrap();
        assert!(files.len() >= 3, "{files:?}");
        let nth = if nth == 2 { files.len() - 1 } else { nth };
        trail_files::delete_trail_file(&files[nth]).unwrap();
        let damage = if nth == files.len() - 1 {
            RowDamage::Truncated
        } else {
            RowDamage::Removed
        };
        let broken = verify_trail(directory, None).unwrap().broken.unwrap();
        assert_eq!((broken.seq, broken.damage), (files[nth].first_seq, damage));
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_trail(directory, 20, limits).await;
    std::fs::remove_file(directory.join(trail_files::ANCHOR_NAME)).unwrap();
    let broken = verify_trail(directory, None).unwrap().broken.unwrap();
    assert_eq!(broken.damage, RowDamage::Unanchored);
    write_trail(directory, 1, limits).await;
    let gap = read_rows(directory)
        .into_iter()
        .find(|row| row.kind == AuditRowKind::Gap)
        .unwrap();
    assert_eq!(
        gap.reason.as_deref(),
        Some("the head beside the files was missing")
    );
}

#[tokio::test]
async fn missing_trail_is_not_intact() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    std::fs::create_dir(&path).unwrap();
    write_trail(&path, 20, AuditLimits::default()).await;
    let noted = verify_trail(&path, None).unwrap();
    assert_eq!(noted.broken, None);
    std::fs::remove_dir_all(&path).unwrap();
    for expect in [None, Some(noted.head)] {
        let broken = verify_trail(&path, expect).unwrap().broken.unwrap();
        assert_eq!((broken.seq, broken.damage), (1, RowDamage::Missing));
    }
    std::fs::create_dir(&path).unwrap();
    let broken = verify_trail(&path, None).unwrap().broken.unwrap();
    assert_eq!(broken.damage, RowDamage::Missing);
}

/// Reads all readable rows.
fn read_row_texts(directory: &Path) -> Vec<RowText> {
    let mut rows = Vec::new();
    let _unreadable = export_rows(directory, &AuditFilter::default(), |row| {
        rows.push(row.clone());
        Ok(())
    });
    rows
}

#[tokio::test]
async fn flipped_bit_is_reported_or_harmless() {
    let whole = tempfile::tempdir().unwrap();
    write_trail(whole.path(), 150, AuditLimits::default()).await;
    let file = trail_files::list_files(whole.path())
        .unwrap()
        .pop()
        .unwrap();
    let bytes = std::fs::read(&file.path).unwrap();
    let (rows, verdict) = (
        read_row_texts(whole.path()),
        verify_trail(whole.path(), None).unwrap(),
    );
    let (mut state, mut named) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    for _ in 0..500 {
        // Pseudo-random number, the same in every run.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bit = usize::try_from(state >> 20).unwrap() % (bytes.len() * 8);
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(
            whole.path().join(trail_files::ANCHOR_NAME),
            copy.path().join(trail_files::ANCHOR_NAME),
        )
        .unwrap();
        std::fs::write(copy.path().join(file.file_name()), &flipped).unwrap();
        let seen = verify_trail(copy.path(), None).unwrap();
        match seen.broken {
            None => assert_eq!(
                (read_row_texts(copy.path()), seen.head),
                (rows.clone(), verdict.head)
            ),
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
