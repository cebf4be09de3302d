//! Pin files round-trip, and damaged files are reported.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use bowline_core::lint::{LintCode, LintFinding};
use bowline_core::pins::{ListedDefinition, PinKind};
use bytes::Bytes;

use super::*;

fn listed_definition(tool: &str, text: &str, byte: u8) -> ListedDefinition {
    ListedDefinition {
        kind: PinKind::Tool,
        name: tool.into(),
        hash: [byte; 32],
        definition: Bytes::copy_from_slice(text.as_bytes()),
        findings: Vec::new(),
    }
}

fn sample_pins() -> ServerPins {
    let mut pins = ServerPins::default();
    let odd = ListedDefinition {
        findings: vec![LintFinding {
            code: LintCode::Injection,
            location: "description".into(),
            detail: "<important>".into(),
        }],
        ..listed_definition("odd", "{}", 3)
    };
    pins.observe_list(
        &[
            listed_definition("t", "{ \"a\": \"\\u00e9\u{200b}\" }", 1),
            odd,
        ],
        5,
    );
    pins.observe_list(&[listed_definition("t", "{}", 2)], 6);
    pins.accept_definition(PinKind::Tool, "t", None, 7).unwrap();
    pins.observe_list(&[listed_definition("t", "[]", 4)], 8);
    for (kind, byte) in PinKind::ALL.into_iter().zip(5..) {
        let other = ListedDefinition {
            kind,
            ..listed_definition("same name", "{}", byte)
        };
        pins.observe_list(&[other], 9);
    }
    pins
}

fn open_store(dir: &Path) -> FilePins {
    let state = StateDir::open(dir.join("state")).unwrap();
    FilePins::open(&state).unwrap()
}

fn pin_path(dir: &Path) -> PathBuf {
    dir.join("state/pins/s.json")
}

#[tokio::test]
async fn saved_pins_load_and_files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(dir.path());
    assert_eq!(store.load("s"), Ok(None));
    store.save("s", Arc::new(sample_pins())).await.unwrap();
    assert_eq!(open_store(dir.path()).load("s"), Ok(Some(sample_pins())));
    assert_eq!(store.load("other"), Ok(None));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&pin_path(dir.path())), 0o600);
    assert_eq!(mode(&dir.path().join("state/pins")), 0o700);
    let left = std::fs::read_dir(dir.path().join("state/pins")).unwrap();
    assert_eq!(left.count(), 1, "no drafts stay behind");
    assert!(store.load("../s").is_err());
    assert!(store.save("../s", Arc::default()).await.is_err());
}

#[tokio::test]
async fn damaged_pin_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(dir.path());
    store.save("s", Arc::new(sample_pins())).await.unwrap();
    let whole = std::fs::read(pin_path(dir.path())).unwrap();
    let put = |bytes: &[u8]| std::fs::write(pin_path(dir.path()), bytes).unwrap();
    let text = String::from_utf8(whole.clone()).unwrap();
    let approved = "\"reviewed\":false,\"quarantined\":true";
    assert!(text.contains(approved), "{text}");
    for broken in [
        &b""[..],
        b"null",
        &whole[..whole.len() / 2],
        text.replace("\"v\":1", "\"v\":2").as_bytes(),
        // A manual edit fails the checksum.
        text.replace(approved, "\"reviewed\":true,\"quarantined\":false")
            .as_bytes(),
        text.replace("\"server\":\"s\"", "\"server\":\"t\"")
            .as_bytes(),
    ] {
        put(broken);
        assert!(matches!(store.load("s"), Err(PinStoreError::Unreadable(_))));
    }
    // A valid file of another server.
    std::fs::write(dir.path().join("state/pins/t.json"), &whole).unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(dir.path().join("state/pins/t.json"), private).unwrap();
    assert!(store.load("t").is_err());

    put(&whole);
    assert!(store.load("s").unwrap().is_some());
    let open_to_all = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(pin_path(dir.path()), open_to_all).unwrap();
    assert!(store.load("s").is_err(), "anybody could have written it");
}

#[tokio::test]
async fn symlinked_pin_file_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(dir.path());
    store.save("s", Arc::new(sample_pins())).await.unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(pin_path(dir.path()), &elsewhere).unwrap();
    symlink(&elsewhere, pin_path(dir.path())).unwrap();
    assert!(store.load("s").is_err());
    let before = std::fs::read(&elsewhere).unwrap();
    store.save("s", Arc::default()).await.unwrap();
    assert_eq!(std::fs::read(&elsewhere).unwrap(), before);
    assert_eq!(store.load("s"), Ok(Some(ServerPins::default())));
}

#[tokio::test]
async fn failed_save_errors_and_late_save_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(dir.path());
    let late = store.save("s", Arc::default());
    store.save("s", Arc::new(sample_pins())).await.unwrap();
    late.await.unwrap();
    assert_eq!(store.load("s"), Ok(Some(sample_pins())));
    std::fs::remove_dir_all(dir.path().join("state/pins")).unwrap();
    let lost = store.save("s", Arc::default()).await;
    assert!(matches!(lost, Err(PinStoreError::Unsaved(_))));
}
