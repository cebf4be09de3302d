//! File permissions, locking, versions and file types.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use rusqlite::Connection;

use super::*;
use crate::engine::JournalHealth;
use crate::sqlite::{JournalOpenError, journal_files, schema};

fn open_error(path: &Path) -> JournalOpenError {
    SqliteJournal::open(path).unwrap_err()
}

fn file_mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn all_files_are_private() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("made/by/us");
    let path = home.join("state.db");
    let journal = open_journal(&path);
    publish_leased(&journal, "one", "a");
    assert_eq!(file_mode(&home), 0o700);
    let mut names = Vec::new();
    for file in home.read_dir().unwrap() {
        let file = file.unwrap();
        assert_eq!(file_mode(&file.path()), 0o600, "{file:?}");
        names.push(file.file_name().into_string().unwrap());
    }
    names.sort();
    let wanted = ["", "-shm", "-wal", ".ballast", ".lock"];
    assert_eq!(names, wanted.map(|end| format!("state.db{end}")));
}

#[test]
fn exposed_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    drop(open_journal(&path));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = open_error(&path);
    assert!(
        matches!(error, JournalOpenError::Exposed { mode: 0o640, .. }),
        "{error:?}"
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let shared = std::fs::Permissions::from_mode(0o770);
    std::fs::set_permissions(directory.path(), shared).unwrap();
    let error = open_error(&path);
    assert!(
        matches!(error, JournalOpenError::Exposed { mode: 0o770, .. }),
        "{error:?}"
    );
}

#[test]
fn sec_44_symlink_in_place_of_file_refused() {
    for end in ["", "-wal", "-shm", ".lock"] {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("elsewhere");
        std::fs::write(&target, "").unwrap();
        let path = directory.path().join("state.db");
        symlink(&target, journal_files::sibling_path(&path, end)).unwrap();
        let error = open_error(&path);
        assert!(
            matches!(error, JournalOpenError::Symlink(_)),
            "{end}: {error:?}"
        );
        assert_eq!(std::fs::read(&target).unwrap(), b"");
    }
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("elsewhere");
    std::fs::write(&target, "precious").unwrap();
    let path = directory.path().join("state.db");
    symlink(&target, journal_files::sibling_path(&path, ".ballast")).unwrap();
    drop(SqliteJournal::open(&path));
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
}

#[test]
fn journal_opens_only_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open_journal(&path);
    let error = open_error(&path);
    assert!(matches!(error, JournalOpenError::InUse(_)), "{error:?}");
    block_on(journal.close());
    // The journal counts as closed although the handle still exists.
    drop(open_journal(&path));
}

#[test]
fn newer_version_is_refused_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    drop(open_journal(&path));
    let newer = schema::MIGRATIONS.len() + 1;
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(&format!("PRAGMA user_version = {newer}"))
        .unwrap();
    drop(conn);
    let error = open_error(&path);
    assert!(
        matches!(error, JournalOpenError::Newer { found, .. } if found == newer),
        "{error:?}"
    );
    let conn = Connection::open(&path).unwrap();
    assert_eq!(schema::file_version(&conn).unwrap(), newer);
}

#[test]
fn migration_step_is_atomic() {
    let conn = Connection::open_in_memory().unwrap();
    let steps = [
        "CREATE TABLE a (x);",
        "CREATE TABLE b (x); CREATE TABLE a (x);",
    ];
    schema::migrate(&conn, &steps).unwrap_err();
    assert_eq!(schema::file_version(&conn).unwrap(), 1);
    conn.execute_batch("SELECT * FROM b").unwrap_err();
    let steps = ["", "ALTER TABLE a ADD COLUMN y;", "CREATE TABLE c (x);"];
    schema::migrate(&conn, &steps).unwrap();
    assert_eq!(schema::file_version(&conn).unwrap(), 3);
    conn.execute_batch("SELECT y FROM a; SELECT * FROM c")
        .unwrap();
    schema::migrate(&conn, &steps).unwrap();
}

#[test]
fn network_file_systems_are_recognized() {
    for (number, name) in [
        (0x6969, "NFS"),
        (0xFF53_4D42, "CIFS"),
        (0x6573_5546, "FUSE"),
    ] {
        assert_eq!(journal_files::network_file_system(number), Some(name));
    }
    // ext4, btrfs, xfs, tmpfs, overlay.
    for local in [0xEF53, 0x9123_683E, 0x5846_5342, 0x0102_1994, 0x794C_7630] {
        assert_eq!(journal_files::network_file_system(local), None);
    }
}

#[test]
fn foreign_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    std::fs::write(
        &path,
        "not a database, but long enough to be one".repeat(200),
    )
    .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let error = open_error(&path);
    assert!(
        matches!(error, JournalOpenError::Sqlite { .. }),
        "{error:?}"
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    open_error(&path);
}

/// Copies the files as left by a crash.
fn copy_crashed_files(from: &Path, to: &Path) {
    for end in ["", "-wal"] {
        let target = journal_files::sibling_path(to, end);
        std::fs::copy(journal_files::sibling_path(from, end), &target).unwrap();
    }
}

#[test]
fn truncated_wal_loses_only_cut_transactions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open_journal(&path);
    let mut ends = Vec::new();
    for number in 0..12 {
        block_on(journal.publish(message_draft("one", &number.to_string()), moment_at(1))).unwrap();
        let log = journal_files::sibling_path(&path, "-wal")
            .metadata()
            .unwrap()
            .len();
        ends.push(log);
    }
    let copy = directory.path().join("crash/state.db");
    std::fs::create_dir(copy.parent().unwrap()).unwrap();
    let last = *ends.last().unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let cuts = (0..60).map(|_| rng.u64(last.saturating_sub(65_536)..=last));
    let cuts: Vec<u64> = cuts.chain(ends.clone()).collect();
    for cut in cuts {
        copy_crashed_files(&path, &copy);
        let mut options = std::fs::OpenOptions::new();
        let log = options
            .write(true)
            .open(journal_files::sibling_path(&copy, "-wal"));
        let log = log.unwrap();
        log.set_len(cut).unwrap();
        drop(log);
        let journal = open_journal(&copy);
        assert_eq!(journal.health(), JournalHealth::Good, "cut at {cut}");
        let lanes = block_on(journal.lane_stats("", moment_at(2))).unwrap();
        let found = lanes.first().map_or(0, |lane| lane.queued);
        let whole = ends.iter().filter(|end| **end <= cut).count() as u64;
        assert_eq!(found, whole, "cut at {cut} of {ends:?}");
        for id in 1..=found {
            let entry = block_on(journal.get_message(crate::MessageId(id), moment_at(2))).unwrap();
            assert_eq!(entry.unwrap().position, id);
        }
        drop(journal);
        for file in copy.parent().unwrap().read_dir().unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
}
