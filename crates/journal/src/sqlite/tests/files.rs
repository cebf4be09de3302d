//! Who may open the file, and which file may be opened.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use rusqlite::Connection;

use super::*;
use crate::engine::Health;
use crate::sqlite::{OpenError, files, schema};

fn refused(path: &Path) -> OpenError {
    Sqlite::open(path).unwrap_err()
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn all_files_are_private() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("made/by/us");
    let path = home.join("state.db");
    let journal = open(&path);
    hold(&journal, "one", "a");
    assert_eq!(mode(&home), 0o700);
    let mut names = Vec::new();
    for file in home.read_dir().unwrap() {
        let file = file.unwrap();
        assert_eq!(mode(&file.path()), 0o600, "{file:?}");
        names.push(file.file_name().into_string().unwrap());
    }
    names.sort();
    let wanted = ["", "-shm", "-wal", ".ballast", ".lock"];
    assert_eq!(names, wanted.map(|end| format!("state.db{end}")));
}

#[test]
fn a_file_that_others_may_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    drop(open(&path));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = refused(&path);
    assert!(
        matches!(error, OpenError::Exposed { mode: 0o640, .. }),
        "{error:?}"
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let shared = std::fs::Permissions::from_mode(0o770);
    std::fs::set_permissions(directory.path(), shared).unwrap();
    let error = refused(&path);
    assert!(
        matches!(error, OpenError::Exposed { mode: 0o770, .. }),
        "{error:?}"
    );
}

#[test]
fn sec_44_a_link_in_the_place_of_a_file_is_refused() {
    for end in ["", "-wal", "-shm", ".lock"] {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("elsewhere");
        std::fs::write(&target, "").unwrap();
        let path = directory.path().join("state.db");
        symlink(&target, files::beside(&path, end)).unwrap();
        let error = refused(&path);
        assert!(matches!(error, OpenError::Symlink(_)), "{end}: {error:?}");
        assert_eq!(std::fs::read(&target).unwrap(), b"");
    }
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("elsewhere");
    std::fs::write(&target, "precious").unwrap();
    let path = directory.path().join("state.db");
    symlink(&target, files::beside(&path, ".ballast")).unwrap();
    drop(Sqlite::open(&path));
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
}

#[test]
fn a_journal_is_open_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open(&path);
    let error = refused(&path);
    assert!(matches!(error, OpenError::InUse(_)), "{error:?}");
    wait(journal.close());
    // Closed is closed, although the handle is still there.
    drop(open(&path));
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    drop(open(&path));
    let newer = schema::STEPS.len() + 1;
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(&format!("PRAGMA user_version = {newer}"))
        .unwrap();
    drop(conn);
    let error = refused(&path);
    assert!(
        matches!(error, OpenError::Newer { found, .. } if found == newer),
        "{error:?}"
    );
    let conn = Connection::open(&path).unwrap();
    assert_eq!(schema::version(&conn).unwrap(), newer);
}

#[test]
fn a_step_is_taken_as_a_whole_or_not_at_all() {
    let conn = Connection::open_in_memory().unwrap();
    let steps = [
        "CREATE TABLE a (x);",
        "CREATE TABLE b (x); CREATE TABLE a (x);",
    ];
    schema::migrate(&conn, &steps).unwrap_err();
    assert_eq!(schema::version(&conn).unwrap(), 1);
    conn.execute_batch("SELECT * FROM b").unwrap_err();
    let steps = ["", "ALTER TABLE a ADD COLUMN y;", "CREATE TABLE c (x);"];
    schema::migrate(&conn, &steps).unwrap();
    assert_eq!(schema::version(&conn).unwrap(), 3);
    conn.execute_batch("SELECT y FROM a; SELECT * FROM c")
        .unwrap();
    schema::migrate(&conn, &steps).unwrap();
}

#[test]
fn file_systems_of_a_network_are_known_by_their_number() {
    for (number, name) in [
        (0x6969, "NFS"),
        (0xFF53_4D42, "CIFS"),
        (0x6573_5546, "FUSE"),
    ] {
        assert_eq!(files::network(number), Some(name));
    }
    // ext4, btrfs, xfs, tmpfs, overlay.
    for local in [0xEF53, 0x9123_683E, 0x5846_5342, 0x0102_1994, 0x794C_7630] {
        assert_eq!(files::network(local), None);
    }
}

#[test]
fn something_else_than_a_journal_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    std::fs::write(
        &path,
        "not a database, but long enough to be one".repeat(200),
    )
    .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let error = refused(&path);
    assert!(matches!(error, OpenError::Sqlite { .. }), "{error:?}");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused(&path);
}

/// Copies the files as they are on the disk, which is what a crash leaves.
fn crash(from: &Path, to: &Path) {
    for end in ["", "-wal"] {
        let target = files::beside(to, end);
        std::fs::copy(files::beside(from, end), &target).unwrap();
    }
}

#[test]
fn a_log_cut_off_at_any_byte_loses_only_what_was_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let journal = open(&path);
    let mut ends = Vec::new();
    for number in 0..12 {
        wait(journal.publish(draft("one", &number.to_string()), at(1))).unwrap();
        let log = files::beside(&path, "-wal").metadata().unwrap().len();
        ends.push(log);
    }
    let copy = directory.path().join("crash/state.db");
    std::fs::create_dir(copy.parent().unwrap()).unwrap();
    let last = *ends.last().unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let cuts = (0..60).map(|_| rng.u64(last.saturating_sub(65_536)..=last));
    let cuts: Vec<u64> = cuts.chain(ends.clone()).collect();
    for cut in cuts {
        crash(&path, &copy);
        let mut options = std::fs::OpenOptions::new();
        let log = options.write(true).open(files::beside(&copy, "-wal"));
        let log = log.unwrap();
        log.set_len(cut).unwrap();
        drop(log);
        let journal = open(&copy);
        assert_eq!(journal.health(), Health::Good, "cut at {cut}");
        let lanes = wait(journal.lanes("", at(2))).unwrap();
        let found = lanes.first().map_or(0, |lane| lane.waiting);
        let whole = ends.iter().filter(|end| **end <= cut).count() as u64;
        assert_eq!(found, whole, "cut at {cut} of {ends:?}");
        for id in 1..=found {
            let entry = wait(journal.entry(crate::MessageId(id), at(2))).unwrap();
            assert_eq!(entry.unwrap().position, id);
        }
        drop(journal);
        for file in copy.parent().unwrap().read_dir().unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
}
