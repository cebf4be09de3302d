//! A trail under load, and on a disk that fails.

use std::sync::mpsc;

use rusqlite::Connection;

use super::*;

/// A trail whose thread stops before each batch until it is let on.
fn held(directory: &Path, limits: Limits) -> (Trail<Word>, mpsc::Sender<()>) {
    let (let_on, waits) = mpsc::channel();
    let rendering = render();
    let waits = std::sync::Mutex::new(Some(waits));
    let render: Render<Word> = Arc::new(move |word| {
        // The first note of the thread waits; then the channel is gone, and nothing does.
        let is_thread = std::thread::current().name() == Some("audit");
        let waits = is_thread.then(|| waits.lock().unwrap().take()).flatten();
        if let Some(waits) = waits {
            let _gone = waits.recv();
        }
        rendering(word)
    });
    let trail = Trail::open(directory, limits, wall(), render).unwrap();
    (trail, let_on)
}

#[tokio::test]
async fn whoever_notes_something_waits_for_room_and_not_for_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits {
        rows_max: 100,
        ..Limits::default()
    };
    let (trail, let_on) = held(directory.path(), limits);
    note(&trail, 0..99);
    assert!(trail.has_room(), "nothing is written yet, and nobody waits");
    note(&trail, 99..100);
    assert!(!trail.has_room());
    let mut room = Box::pin(trail.room());
    let waits = std::future::poll_fn(|context| {
        std::task::Poll::Ready(room.as_mut().poll(context).is_pending())
    });
    assert!(waits.await);
    // Whoever can wait no more is taken all the same.
    note(&trail, 100..101);
    assert_eq!(trail.health().waiting, 101);
    let_on.send(()).unwrap();
    room.await;
    trail.close().await;
    assert_eq!(names(directory.path()).len(), 101);
    assert_eq!(verify(directory.path(), None).unwrap().broken, None);
}

#[tokio::test]
async fn bytes_that_are_kept_alive_are_bounded_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits {
        bytes_max: 1_000,
        ..Limits::default()
    };
    let (trail, let_on) = held(directory.path(), limits);
    trail.note("a".to_owned(), 999);
    assert!(trail.has_room());
    trail.note("b".to_owned(), 1);
    assert!(!trail.has_room());
    drop(let_on);
    trail.room().await;
    trail.flush().await;
    assert_eq!(trail.health().waiting, 0);
}

#[tokio::test]
async fn sec_101_large_notes_are_rendered_at_once_when_many_wait() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits {
        large_bytes_max: 300_000,
        bytes_max: 4_000_000,
        ..Limits::default()
    };
    let (trail, let_on) = held(directory.path(), limits);
    for word in 0..40 {
        trail.note(format!("w{word}"), 250_000);
    }
    assert!(trail.has_room(), "10 MB are not kept alive");
    let_on.send(()).unwrap();
    trail.close().await;
    assert_eq!(names(directory.path()).len(), 40);
    assert_eq!(verify(directory.path(), None).unwrap().broken, None);
}

#[tokio::test]
async fn rows_that_no_disk_took_are_counted_and_a_row_tells_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let trail = open(directory, Limits::default());
    note(&trail, 0..10);
    trail.flush().await;
    let file = files::list(directory).unwrap().pop().unwrap();
    let other = Connection::open(&file.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    note(&trail, 10..17);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(
        (health.lost, health.waiting),
        (7, 0),
        "nobody waits for a disk that fails"
    );
    assert!(health.trouble.is_some());
    other.execute_batch("ROLLBACK").unwrap();
    note(&trail, 17..20);
    trail.flush().await;
    assert_eq!((trail.health().lost, trail.health().trouble), (7, None));
    trail.close().await;
    let verdict = verify(directory, None).unwrap();
    assert_eq!((verdict.broken, verdict.gaps, verdict.lost), (None, 1, 7));
    let told = rows(directory)
        .into_iter()
        .find(|row| row.kind == Kind::Gap);
    assert_eq!(told.unwrap().lost, Some(7));
    assert_eq!(names(directory).len(), 13);
}

#[tokio::test]
async fn a_trail_whose_disk_failed_for_good_goes_on_in_another_file() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let trail = open(directory, Limits::default());
    note(&trail, 0..10);
    trail.flush().await;
    let file = files::list(directory).unwrap().pop().unwrap();
    // What it writes to is not a database any more.
    let damage = Connection::open(&file.path).unwrap();
    damage
        .execute_batch("DROP VIEW said; DROP TABLE rows")
        .unwrap();
    note(&trail, 10..20);
    trail.flush().await;
    assert_eq!(trail.health().lost, 10);
    note(&trail, 20..25);
    trail.flush().await;
    assert_eq!(trail.health().trouble, None);
    trail.close().await;
    assert_eq!(names(directory).len(), 5);
    let broken = verify(directory, None).unwrap().broken.unwrap();
    assert_eq!((broken.seq, broken.damage), (1, Damage::Removed));
}

#[tokio::test]
async fn what_is_noted_after_the_end_is_counted_and_holds_nobody_up() {
    let directory = tempfile::tempdir().unwrap();
    let trail = open(directory.path(), Limits::default());
    trail.close().await;
    note(&trail, 0..1);
    trail.room().await;
    trail.flush().await;
    trail.close().await;
    assert_eq!(trail.health().lost, 1);
}

#[tokio::test]
async fn a_batch_is_written_though_nobody_asks_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let trail = open(directory.path(), Limits::default());
    let mut heads = trail.heads();
    heads.borrow_and_update();
    note(&trail, 0..1);
    heads.changed().await.unwrap();
    assert_eq!(names(directory.path()), ["w0"]);
}

/// A file system of a few kilobytes, where one can be made.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
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

impl Drop for Small {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount")
            .arg(self.0.path())
            .status();
        assert!(unmounted.unwrap().success());
    }
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
async fn a_full_disk_loses_rows_that_are_counted_and_the_chain_goes_on_when_there_is_room() {
    let Some(disk) = Small::mount() else {
        return eprintln!("left out: a full disk (no file system can be mounted here)");
    };
    let directory = disk.0.path().join("audit");
    std::fs::create_dir(&directory).unwrap();
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![0; 300 * 1024]).unwrap();
    let trail = open(&directory, Limits::default());
    let mut noted = 0;
    while trail.health().trouble.is_none() {
        note(&trail, noted..noted + 100);
        noted += 100;
        trail.flush().await;
        assert!(noted < 100_000, "the disk never was full");
    }
    assert!(trail.health().lost > 0);
    // Nobody waits, however long it lasts.
    note(&trail, noted..noted + 1_000);
    noted += 1_000;
    trail.flush().await;
    std::fs::remove_file(&ballast).unwrap();
    note(&trail, noted..noted + 10);
    noted += 10;
    trail.flush().await;
    let health = trail.health();
    assert_eq!(health.trouble, None);
    trail.close().await;
    let verdict = verify(&directory, None).unwrap();
    assert_eq!((verdict.broken, verdict.lost), (None, health.lost));
    let kept = names(&directory).len() as u64;
    assert_eq!(kept + verdict.lost, noted, "each is there or counted");
}

#[tokio::test]
async fn deleted_directory_loses_rows_aloud() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("audit");
    std::fs::create_dir(&directory).unwrap();
    let limits = Limits {
        retry_wait: Duration::from_millis(1),
        ..Limits::default()
    };
    let trail = open(&directory, limits);
    note(&trail, 0..3);
    trail.flush().await;
    assert_eq!(trail.health().trouble, None);
    std::fs::remove_dir_all(&directory).unwrap();
    // Whoever asks learns of it before a row is lost.
    let health = trail.health();
    assert!(
        health
            .trouble
            .unwrap()
            .contains("was deleted, moved or replaced")
    );
    assert_eq!(health.lost, 0);
    note(&trail, 3..8);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(health.lost, 5, "{health:?}");
    assert!(health.trouble.is_some(), "{health:?}");
    assert!(!directory.exists(), "nothing is made in secret");
    // A directory in its place is written to; the hole stays visible.
    std::fs::create_dir(&directory).unwrap();
    note(&trail, 8..9);
    trail.close().await;
    let rows = rows(&directory);
    let gap = rows.iter().find(|row| row.kind == Kind::Gap).unwrap();
    assert!(gap.lost >= Some(5), "{gap:?}");
    assert!(gap.reason.is_some(), "{gap:?}");
    let seen = verify(&directory, None).unwrap();
    assert!(
        seen.broken.is_some(),
        "the rows that are gone are missed: {seen:?}"
    );
}

#[tokio::test]
async fn replaced_file_is_not_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let trail = open(directory, Limits::default());
    note(&trail, 0..3);
    trail.flush().await;
    let file = files::list(directory).unwrap().remove(0).path;
    let copy = directory.join("copy");
    std::fs::copy(&file, &copy).unwrap();
    std::fs::rename(&copy, &file).unwrap();
    note(&trail, 3..5);
    trail.flush().await;
    let health = trail.health();
    assert_eq!(health.lost, 2, "{health:?}");
    assert!(health.trouble.unwrap().contains("replaced"));
}
