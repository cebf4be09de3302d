//! Detection of every kind of damage.

use std::path::Path;

use rusqlite::Connection;

use super::row_block::StoredRow;
use super::trail_files::{ScanDirection, TrailFile};
use super::*;

/// Damaged row in the middle of the file.
const AT: u64 = 20;

/// Edits the rows of a file, as a program with write access can.
type Edit = fn(&mut Vec<StoredRow>);

/// Writes a trail of a single file, edits its rows, and returns the damage found.
async fn find_damage(edit: Edit) -> Option<(u64, RowDamage)> {
    let directory = tempfile::tempdir().unwrap();
    write_trail(directory.path(), 50, AuditLimits::default()).await;
    edit_rows(directory.path(), edit);
    let broken = verify_trail(directory.path(), None).unwrap().broken;
    broken.map(|broken| (broken.seq, broken.damage))
}

fn open_newest(directory: &Path) -> (TrailFile, Connection) {
    let file = trail_files::list_files(directory).unwrap().pop().unwrap();
    let connection = Connection::open(&file.path).unwrap();
    (file, connection)
}

/// Applies an edit and stores every run of consecutive rows as one block.
fn edit_rows(directory: &Path, edit: impl FnOnce(&mut Vec<StoredRow>)) {
    let (file, connection) = open_newest(directory);
    let mut rows = Vec::new();
    trail_files::scan_rows(&connection, &file, ScanDirection::Forward, 0, &mut |row| {
        rows.push(row);
        true
    })
    .unwrap();
    edit(&mut rows);
    connection.execute("DELETE FROM blocks", ()).unwrap();
    for run in rows.chunk_by(|row, next| row.seq + 1 == next.seq) {
        let mut block = Vec::new();
        for row in run {
            let encoded = row.encoded.as_ref().unwrap();
            block.extend_from_slice(&u32::try_from(encoded.len()).unwrap().to_le_bytes());
            block.extend_from_slice(encoded);
            block.extend_from_slice(&row.hash.unwrap().0);
        }
        let insert = "INSERT INTO blocks (first_seq, rows) VALUES (?1, ?2)";
        let first_seq = run[0].seq.cast_signed();
        connection.execute(insert, (first_seq, block)).unwrap();
    }
}

/// Returns the position of a row in the list.
fn find_at(rows: &[StoredRow], seq: u64) -> usize {
    rows.iter().position(|row| row.seq == seq).unwrap()
}

fn row_at(rows: &mut [StoredRow], seq: u64) -> &mut StoredRow {
    let at = find_at(rows, seq);
    &mut rows[at]
}

/// Changes the word of the damaged row.
fn change_word(rows: &mut [StoredRow]) {
    let at = find_at(rows, AT);
    let mut row = rows[at].decode().unwrap();
    assert_eq!(row.name.as_deref(), Some("w17"));
    row.name = Some("w18".into());
    let mut encoded = Vec::new();
    row_encoding::encode_row(&row, &mut encoded);
    rows[at].encoded = Some(encoded);
}

/// Exchanges the contents of two rows.
fn swap_rows(rows: &mut [StoredRow], first: u64, second: u64) {
    let (first_at, second_at) = (find_at(rows, first), find_at(rows, second));
    rows.swap(first_at, second_at);
    (rows[first_at].seq, rows[second_at].seq) = (first, second);
}

/// Makes room for a row at the damaged position and puts a copy of row 10 there.
fn insert_copy(rows: &mut Vec<StoredRow>) {
    let at = find_at(rows, AT);
    let mut copy = rows[find_at(rows, 10)].clone();
    for row in &mut rows[at..] {
        row.seq += 1;
    }
    copy.seq = AT;
    row_encoding::set_seq(copy.encoded.as_mut().unwrap(), AT);
    rows.insert(at, copy);
}

/// Removes the row and closes the hole.
fn shift_down(rows: &mut Vec<StoredRow>) {
    let at = find_at(rows, AT);
    rows.remove(at);
    for row in &mut rows[at..] {
        row.seq -= 1;
    }
}

#[tokio::test]
async fn sec_50_first_damaged_row_is_reported() {
    let cases: [(&str, Edit, RowDamage); 11] = [
        ("word", |rows| change_word(rows), RowDamage::Changed),
        (
            "content",
            |rows| row_at(rows, AT).encoded = Some(b"x".to_vec()),
            RowDamage::Changed,
        ),
        (
            "empty",
            |rows| row_at(rows, AT).encoded = Some(Vec::new()),
            RowDamage::Changed,
        ),
        (
            "hash",
            |rows| row_at(rows, AT).hash = Some(ChainHash::default()),
            RowDamage::Changed,
        ),
        (
            "removed",
            |rows| rows.retain(|row| row.seq != AT),
            RowDamage::Removed,
        ),
        ("shifted down", shift_down, RowDamage::Removed),
        (
            "neighbours",
            |rows| swap_rows(rows, AT, AT + 1),
            RowDamage::Reordered,
        ),
        (
            "far rows",
            |rows| swap_rows(rows, AT, 2 * AT),
            RowDamage::Removed,
        ),
        ("inserted", insert_copy, RowDamage::Inserted),
        (
            "end",
            |rows| rows.retain(|row| row.seq < AT),
            RowDamage::Truncated,
        ),
        (
            "too long",
            |rows| row_at(rows, AT).encoded = Some(vec![1; 2_000_000]),
            RowDamage::Changed,
        ),
    ];
    for (what, edit, damage) in cases {
        let found = find_damage(edit).await;
        if what == "too long" {
            // The block of such a row is not loaded, so its first row counts as damaged.
            assert!(
                matches!(found, Some((seq, RowDamage::Changed)) if seq <= AT),
                "{found:?}"
            );
            continue;
        }
        assert_eq!(found, Some((AT, damage)), "{what}");
    }
    let first = find_damage(|rows| rows.retain(|row| row.seq != 1)).await;
    assert_eq!(first, Some((1, RowDamage::Removed)));
    assert_eq!(
        find_damage(Vec::clear).await,
        Some((1, RowDamage::Truncated))
    );
    assert_eq!(find_damage(|_| {}).await, None);
    let directory = tempfile::tempdir().unwrap();
    write_trail(directory.path(), 50, AuditLimits::default()).await;
    let (_, connection) = open_newest(directory.path());
    connection.execute("DROP TABLE blocks", ()).unwrap();
    let broken = verify_trail(directory.path(), None).unwrap().broken;
    let broken = broken.map(|broken| (broken.seq, broken.damage));
    assert_eq!(broken, Some((1, RowDamage::Truncated)));
}

#[tokio::test]
async fn file_of_another_version_is_unreadable() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_trail(directory, 50, AuditLimits::default()).await;
    let (file, connection) = open_newest(directory);
    connection.execute_batch("PRAGMA user_version = 1").unwrap();
    let broken = verify_trail(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (1, RowDamage::Unreadable));
    let page = read_newest(directory, &AuditFilter::default(), 1);
    assert!(matches!(page, Err(AuditError::FileVersion(path)) if path == file.path));
    // The trail goes on in a new file and says what it found.
    write_trail(directory, 5, AuditLimits::default()).await;
    connection.execute_batch("PRAGMA user_version = 2").unwrap();
    let rows = read_rows(directory);
    let gap = rows.iter().find(|row| row.kind == AuditRowKind::Gap);
    let reason = gap.unwrap().reason.as_deref().unwrap();
    assert!(reason.contains("another version"), "{reason}");
}

/// Recomputes every hash from a row on, like an attacker with access to all files.
fn forge_hashes(directory: &Path, from: u64) -> ChainHead {
    let mut head = ChainHead::default();
    edit_rows(directory, |rows| {
        for row in rows {
            head = head.advance(row.encoded.as_ref().unwrap());
            if row.seq >= from {
                row.hash = Some(head.hash);
            }
        }
    });
    head
}

#[tokio::test]
async fn rehashed_chain_is_detected_by_recorded_head() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write_trail(directory, 50, AuditLimits::default()).await;
    let noted = verify_trail(directory, None).unwrap().head;
    edit_rows(directory, |rows| change_word(rows));
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
    edit_rows(directory, |rows| rows.retain(|row| row.seq < AT));
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
    edit_rows(directory, |rows| change_word(rows));
    forge_hashes(directory, AT);
    write_trail(directory, 5, AuditLimits::default()).await;
    let broken = verify_trail(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (last, RowDamage::Rewritten));
}

#[tokio::test]
async fn missing_file_or_anchor_is_reported() {
    let limits = AuditLimits {
        file_bytes_max: FILE_BYTES,
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
