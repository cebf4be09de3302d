//! What is kept comes back, and what is not whole is told.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use bowline_core::lint::{Code, Finding};
use bowline_core::pins::{PinKind, Sight};
use bytes::Bytes;

use super::*;

fn sight(tool: &str, text: &str, byte: u8) -> Sight {
    Sight {
        kind: PinKind::Tool,
        tool: tool.into(),
        hash: [byte; 32],
        definition: Bytes::copy_from_slice(text.as_bytes()),
        findings: Vec::new(),
    }
}

fn pins() -> Pins {
    let mut pins = Pins::default();
    let odd = Sight {
        findings: vec![Finding {
            code: Code::Injection,
            place: "description".into(),
            detail: "<important>".into(),
        }],
        ..sight("odd", "{}", 3)
    };
    pins.see(&[sight("t", "{ \"a\": \"\\u00e9\u{200b}\" }", 1), odd], 5);
    pins.see(&[sight("t", "{}", 2)], 6);
    pins.accept((PinKind::Tool, "t"), None, 7).unwrap();
    pins.see(&[sight("t", "[]", 4)], 8);
    for (kind, byte) in PinKind::ALL.into_iter().zip(5..) {
        let other = Sight {
            kind,
            ..sight("same name", "{}", byte)
        };
        pins.see(&[other], 9);
    }
    pins
}

fn open(dir: &Path) -> FilePins {
    let state = State::open(dir.join("state")).unwrap();
    FilePins::open(&state).unwrap()
}

fn file(dir: &Path) -> PathBuf {
    dir.join("state/pins/s.json")
}

#[tokio::test]
async fn what_is_kept_comes_back_whole_and_only_we_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(store.load("s"), Ok(None));
    store.save("s", Arc::new(pins())).await.unwrap();
    assert_eq!(open(dir.path()).load("s"), Ok(Some(pins())));
    assert_eq!(store.load("other"), Ok(None));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&file(dir.path())), 0o600);
    assert_eq!(mode(&dir.path().join("state/pins")), 0o700);
    let left = std::fs::read_dir(dir.path().join("state/pins")).unwrap();
    assert_eq!(left.count(), 1, "no drafts stay behind");
    assert!(store.load("../s").is_err());
    assert!(store.save("../s", Arc::default()).await.is_err());
}

#[tokio::test]
async fn a_file_that_is_not_what_was_written_is_told_and_never_taken_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.save("s", Arc::new(pins())).await.unwrap();
    let whole = std::fs::read(file(dir.path())).unwrap();
    let put = |bytes: &[u8]| std::fs::write(file(dir.path()), bytes).unwrap();
    let text = String::from_utf8(whole.clone()).unwrap();
    let approved = "\"reviewed\":false,\"quarantined\":true";
    assert!(text.contains(approved), "{text}");
    for broken in [
        &b""[..],
        b"null",
        &whole[..whole.len() / 2],
        text.replace("\"v\":1", "\"v\":2").as_bytes(),
        // Whoever edits it by hand does not get past the sum.
        text.replace(approved, "\"reviewed\":true,\"quarantined\":false")
            .as_bytes(),
        text.replace("\"server\":\"s\"", "\"server\":\"t\"")
            .as_bytes(),
    ] {
        put(broken);
        assert!(matches!(store.load("s"), Err(StoreError::Unreadable(_))));
    }
    // Of another server, however whole.
    std::fs::write(dir.path().join("state/pins/t.json"), &whole).unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(dir.path().join("state/pins/t.json"), private).unwrap();
    assert!(store.load("t").is_err());

    put(&whole);
    assert!(store.load("s").unwrap().is_some());
    let open_to_all = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(file(dir.path()), open_to_all).unwrap();
    assert!(store.load("s").is_err(), "anybody could have written it");
}

#[tokio::test]
async fn a_link_in_place_of_a_file_is_neither_read_nor_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.save("s", Arc::new(pins())).await.unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(file(dir.path()), &elsewhere).unwrap();
    symlink(&elsewhere, file(dir.path())).unwrap();
    assert!(store.load("s").is_err());
    let before = std::fs::read(&elsewhere).unwrap();
    store.save("s", Arc::default()).await.unwrap();
    assert_eq!(std::fs::read(&elsewhere).unwrap(), before);
    assert_eq!(store.load("s"), Ok(Some(Pins::default())));
}

#[tokio::test]
async fn one_that_cannot_be_written_is_told_and_a_late_one_undoes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let late = store.save("s", Arc::default());
    store.save("s", Arc::new(pins())).await.unwrap();
    late.await.unwrap();
    assert_eq!(store.load("s"), Ok(Some(pins())));
    std::fs::remove_dir_all(dir.path().join("state/pins")).unwrap();
    let lost = store.save("s", Arc::default()).await;
    assert!(matches!(lost, Err(StoreError::Unsaved(_))));
}
