//! Trails under load and on failing disks.

use std::sync::mpsc;

use bowline_testkit::report_omitted;
use rusqlite::Connection;

use super::*;

/// Returns a trail whose thread stalls after its first batch until released. The thread reads the
/// clock behind every batch.
async fn stalled_trail(
    directory: &Path,
    limits: AuditLimits,
) -> (FileAuditTrail, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel();
    let released = std::sync::Mutex::new(Some(released));
    let clock: UnixClock = Arc::new(move || {
        let is_writer = std::thread::current().name() == Some("audit");
        let released = is_writer.then(|| released.lock().unwrap().take()).flatten();
        if let Some(released) = released {
            let _gone = released.recv();
        }
        1_000
    });
    let trail = FileAuditTrail::open(directory, limits, clock).unwrap();
    append_words(&trail, 0..1);
    trail.flush().await;
    (trail, release)
}

/// Appends a row with an idempotency key that fills it to about `bytes` bytes.
fn append_long(trail: &FileAuditTrail, word: &str, bytes: usize) {
    let mut row = word_row(word, 7);
    row.key = Some("k".repeat(bytes).into());
    trail.append(row, LongBodies::default());
}

#[tokio::test]
async fn callers_wait_for_room_not_disk() {
    let directory = tempfile::tempdir().unwrap();
    let limits = AuditLimits {
        rows_max: 100,
        ..AuditLimits::default()
    };
    let (trail, let_on) = stalled_trail(directory.path(), limits).await;
    append_words(&trail, 0..99);
    assert!(trail.has_room(), "nothing is written yet, and nobody waits");
    append_words(&trail, 99..100);
    assert!(!trail.has_room());
    let mut room = Box::pin(trail.wait_for_room());
    let waits = std::future::poll_fn(|context| {
        std::task::Poll::Ready(room.as_mut().poll(context).is_pending())
    });
    assert!(waits.await);
    // A caller that can no longer wait is accepted anyway.
    append_words(&trail, 100..101);
    assert_eq!(trail.health().queued, 101);
    let_on.send(()).unwrap();
    room.await;
    trail.close().await;
    assert_eq!(read_names(directory.path()).len(), 102);
    assert_eq!(verify_trail(directory.path(), None).unwrap().broken, None);
}

#[tokio::test]
async fn queued_bytes_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let limits = AuditLimits {
        bytes_max: 1_000,
        ..AuditLimits::default()
    };
    let (trail, let_on) = stalled_trail(directory.path(), limits).await;
    append_long(&trail, "a", 800);
    assert!(trail.has_room());
    append_long(&trail, "b", 200);
    assert!(!trail.has_room());
    drop(let_on);
    trail.wait_for_room().await;
    trail.flush().await;
    assert_eq!(trail.health().queued, 0);
}

#[tokio::test]
async fn sec_101_long_bodies_do_not_fill_queue() {
    let directory = tempfile::tempdir().unwrap();
    let limits = AuditLimits {
        body_bytes_max: 300_000,
        bytes_max: 400_000,
        ..AuditLimits::default()
    };
    let (trail, release) = stalled_trail(directory.path(), limits).await;
    let body = Bytes::from(vec![b'x'; 250_000]);
    for word in 0..40 {
        let word = format!("w{word}");
        let mut row = word_row(&word, 7);
        row.result = Some(BodyDigest::PENDING);
        let bodies = LongBodies {
            result: Some(body.clone()),
            ..LongBodies::default()
        };
        trail.append(row, bodies);
    }
    assert!(trail.has_room(), "10 MB are not kept alive");
    release.send(()).unwrap();
    trail.close().await;
    let digest = Some(BodyDigest::from_body(&body));
    let rows = read_rows(directory.path());
    let digests = rows.iter().filter(|row| row.result == digest);
    assert_eq!(digests.count(), 40, "hashed by the thread or by the caller");
    assert_eq!(verify_trail(directory.path(), None).unwrap().broken, None);
}

#[tokio::test]
async fn lost_rows_are_counted_in_gap_row() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let trail = open_trail(directory, AuditLimits::default());
    append_words(&trail, 0..10);
    trail.flush().await;
    let file = trail_files::list_files(directory).unwrap().pop().unwrap();
    let other = Connection::open(&file.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    append_words(&trail, 10..17);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(
        (health.lost, health.queued),
        (7, 0),
        "nobody waits for a disk that fails"
    );
    assert!(health.failure.is_some());
    other.execute_batch("ROLLBACK").unwrap();
    append_words(&trail, 17..20);
    trail.flush().await;
    assert_eq!((trail.health().lost, trail.health().failure), (7, None));
    trail.close().await;
    let verdict = verify_trail(directory, None).unwrap();
    assert_eq!((verdict.broken, verdict.gaps, verdict.lost), (None, 1, 7));
    let told = read_rows(directory)
        .into_iter()
        .find(|row| row.kind == AuditRowKind::Gap);
    assert_eq!(told.unwrap().lost, Some(7));
    assert_eq!(read_names(directory).len(), 13);
}

#[tokio::test]
async fn damaged_file_is_followed_by_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let trail = open_trail(directory, AuditLimits::default());
    append_words(&trail, 0..10);
    trail.flush().await;
    let file = trail_files::list_files(directory).unwrap().pop().unwrap();
    // The file is no longer a valid trail database.
    let damage = Connection::open(&file.path).unwrap();
    damage.execute_batch("DROP TABLE blocks").unwrap();
    append_words(&trail, 10..20);
    trail.flush().await;
    assert_eq!(trail.health().lost, 10);
    append_words(&trail, 20..25);
    trail.flush().await;
    assert_eq!(trail.health().failure, None);
    trail.close().await;
    assert_eq!(read_names(directory).len(), 5);
    let broken = verify_trail(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (1, RowDamage::Removed));
}

#[tokio::test]
async fn rows_after_close_count_as_lost() {
    let directory = tempfile::tempdir().unwrap();
    let trail = open_trail(directory.path(), AuditLimits::default());
    trail.close().await;
    append_words(&trail, 0..1);
    trail.wait_for_room().await;
    trail.flush().await;
    trail.close().await;
    assert_eq!(trail.health().lost, 1);
}

#[tokio::test]
async fn batch_is_written_without_flush() {
    let directory = tempfile::tempdir().unwrap();
    let trail = open_trail(directory.path(), AuditLimits::default());
    let mut heads = trail.head_updates();
    heads.borrow_and_update();
    append_words(&trail, 0..1);
    heads.changed().await.unwrap();
    assert_eq!(read_names(directory.path()), ["w0"]);
}

/// File system of a few kilobytes, if mounting works.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount_small() -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=600k", "tmpfs"])
            .arg(at.path())
            .stderr(std::process::Stdio::null())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount")
            .arg(self.0.path())
            .status();
        assert!(unmounted.unwrap().success());
    }
}

#[tokio::test]
async fn full_disk_counts_lost_rows_then_resumes() {
    let Some(disk) = SmallDisk::mount_small() else {
        let test = "full_disk_counts_lost_rows_then_resumes";
        return report_omitted(test, "nothing can be mounted");
    };
    let directory = disk.0.path().join("audit");
    std::fs::create_dir(&directory).unwrap();
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![0; 300 * 1024]).unwrap();
    let trail = open_trail(&directory, AuditLimits::default());
    let mut noted = 0;
    while trail.health().failure.is_none() {
        append_words(&trail, noted..noted + 100);
        noted += 100;
        trail.flush().await;
        assert!(noted < 100_000, "the disk never was full");
    }
    assert!(trail.health().lost > 0);
    // No caller waits, however long the failure lasts.
    append_words(&trail, noted..noted + 1_000);
    noted += 1_000;
    trail.flush().await;
    std::fs::remove_file(&ballast).unwrap();
    append_words(&trail, noted..noted + 10);
    noted += 10;
    trail.flush().await;
    let health = trail.health();
    assert_eq!(health.failure, None);
    trail.close().await;
    let verdict = verify_trail(&directory, None).unwrap();
    assert_eq!((verdict.broken, verdict.lost), (None, health.lost));
    let kept = read_names(&directory).len() as u64;
    assert_eq!(kept + verdict.lost, noted, "each is there or counted");
}

#[tokio::test]
async fn deleted_directory_reports_lost_rows() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("audit");
    std::fs::create_dir(&directory).unwrap();
    let limits = AuditLimits {
        retry_wait: Duration::from_millis(1),
        ..AuditLimits::default()
    };
    let trail = open_trail(&directory, limits);
    append_words(&trail, 0..3);
    trail.flush().await;
    assert_eq!(trail.health().failure, None);
    std::fs::remove_dir_all(&directory).unwrap();
    // The health shows the replacement before a row is lost.
    let health = trail.health();
    assert!(
        health
            .failure
            .unwrap()
            .contains("was deleted, moved or replaced")
    );
    assert_eq!(health.lost, 0);
    append_words(&trail, 3..8);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(health.lost, 5, "{health:?}");
    assert!(health.failure.is_some(), "{health:?}");
    assert!(!directory.exists(), "nothing is made in secret");
    // A new directory is written to; the gap stays visible.
    std::fs::create_dir(&directory).unwrap();
    append_words(&trail, 8..9);
    trail.close().await;
    let rows = read_rows(&directory);
    let gap = rows
        .iter()
        .find(|row| row.kind == AuditRowKind::Gap)
        .unwrap();
    assert!(gap.lost >= Some(5), "{gap:?}");
    assert!(gap.reason.is_some(), "{gap:?}");
    let seen = verify_trail(&directory, None).unwrap();
    assert!(
        seen.broken.is_some(),
        "the rows that are gone are missed: {seen:?}"
    );
}

#[tokio::test]
async fn replaced_file_is_not_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let trail = open_trail(directory, AuditLimits::default());
    append_words(&trail, 0..3);
    trail.flush().await;
    let file = trail_files::list_files(directory).unwrap().remove(0).path;
    let copy = directory.join("copy");
    std::fs::copy(&file, &copy).unwrap();
    std::fs::rename(&copy, &file).unwrap();
    append_words(&trail, 3..5);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(health.lost, 2, "{health:?}");
    assert!(health.failure.unwrap().contains("replaced"));
}
