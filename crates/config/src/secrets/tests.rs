//! The secret store, and the schedule of secret programs.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_testkit::ManualClock;

use super::secret_program::SecretProgramError as CommandError;
use super::*;
use crate::state::StateDir;

fn command_fetcher(every: Duration) -> SecretFetcher {
    SecretFetcher::Command(Arc::new(SecretProgram {
        program: "p".into(),
        args: Vec::new(),
        directory: "/".into(),
        max_age: every,
    }))
}

#[test]
fn failed_refetch_keeps_last_value() {
    let (clock, slot, tool) = (
        ManualClock::default(),
        OutputSlot::default(),
        command_fetcher(MAX_AGE_DEFAULT),
    );
    let fetch = |why, given: &str| {
        let given = match given {
            "" => Err(CommandError::Empty),
            given => Ok(SecretValue::new(given.to_owned())),
        };
        let (fetched, is_news) = slot.run_fetch(&clock, &tool, why, || given);
        (fetched.ok().map(|value| value.to_string()), is_news)
    };
    let known = || {
        slot.cached_result()
            .and_then(Result::ok)
            .map(|value| value.to_string())
    };
    assert!(slot.is_due(clock.now(), &tool));
    assert_eq!(
        fetch(FetchReason::Age, "one"),
        (Some("one".to_owned()), true)
    );
    clock.set_now(MAX_AGE_DEFAULT - Duration::from_secs(1));
    assert!(!slot.is_due(clock.now(), &tool));
    clock.set_now(MAX_AGE_DEFAULT);
    assert!(slot.is_due(clock.now(), &tool));
    assert_eq!(fetch(FetchReason::Age, ""), (None, false));
    assert_eq!(known().as_deref(), Some("one"), "the old one is still good");
    assert!(!slot.is_due(clock.now(), &tool), "not at once again");
    clock.set_now(MAX_AGE_DEFAULT + Duration::from_secs(30));
    assert!(slot.is_due(clock.now(), &tool), "but soon");
    assert_eq!(
        fetch(FetchReason::Age, "one"),
        (Some("one".to_owned()), false)
    );
}

#[test]
fn refusals_rerun_programs_at_most_periodically() {
    let (clock, slot, tool) = (
        ManualClock::default(),
        OutputSlot::default(),
        command_fetcher(MAX_AGE_DEFAULT),
    );
    let runs = AtomicU64::new(0);
    let fetch = |why| {
        let run = || {
            let nth = runs.fetch_add(1, Ordering::Relaxed);
            Ok(SecretValue::new(format!("value {nth}")))
        };
        slot.run_fetch(&clock, &tool, why, run)
            .0
            .unwrap()
            .to_string()
    };
    assert_eq!(fetch(FetchReason::Age), "value 0");
    assert_eq!(
        fetch(FetchReason::Refused),
        "value 1",
        "the first refusal counts at once"
    );
    for _ in 0..100 {
        assert_eq!(fetch(FetchReason::Refused), "value 1");
    }
    clock.set_now(output_slot::REFUSED_RUN_INTERVAL);
    assert_eq!(fetch(FetchReason::Refused), "value 2");
}

#[test]
fn concurrent_fetch_shares_one_run() {
    let (clock, slot, tool) = (
        ManualClock::default(),
        OutputSlot::default(),
        command_fetcher(MAX_AGE_DEFAULT),
    );
    let runs = AtomicU64::new(0);
    let (begun, go) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let run = || {
                begun.wait();
                go.wait();
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(SecretValue::new("one".to_owned()))
            };
            slot.run_fetch(&clock, &tool, FetchReason::Refused, run)
                .0
                .is_ok()
        });
        begun.wait();
        let others: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let run = || {
                        runs.fetch_add(1, Ordering::Relaxed);
                        Ok(SecretValue::new("two".to_owned()))
                    };
                    slot.run_fetch(&clock, &tool, FetchReason::Refused, run).0
                })
            })
            .collect();
        go.wait();
        assert!(first.join().unwrap());
        for other in others {
            assert_eq!(&**other.join().unwrap().unwrap(), "one");
        }
    });
    assert_eq!(runs.into_inner(), 1);
}

fn open_test_store() -> (tempfile::TempDir, StateDir, SecretStore) {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path().join("state")).unwrap();
    let store = SecretStore::in_directory(state.path());
    (directory, state, store)
}

fn set_secret(store: &SecretStore, state: &StateDir, name: &str, value: &str) {
    let value = SecretValue::new(value.to_owned());
    let env = EnvVars::default();
    store
        .set_secret(state, name, value, SecretStoreKind::File, &env)
        .unwrap();
}

#[test]
fn store_is_private_and_rereads_changes() {
    let (_directory, state, store) = open_test_store();
    let reader = SecretStore::in_directory(state.path());
    let read = |name: &str| match reader.find_entry(name).unwrap() {
        Some(SecretStoreEntry::InFile(value)) => Some(value.to_string()),
        _ => None,
    };
    assert_eq!(read("a"), None);
    set_secret(&store, &state, "a", "one-value");
    assert_eq!(read("a").as_deref(), Some("one-value"));
    set_secret(&store, &state, "a", "two-value");
    set_secret(&store, &state, "b", "three\n\"four\"");
    assert_eq!(read("a").as_deref(), Some("two-value"), "at once");
    assert_eq!(read("b").as_deref(), Some("three\n\"four\""));
    let mode = std::fs::metadata(store.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        store
            .remove_secret(&state, "a", &EnvVars::default())
            .unwrap()
    );
    assert!(
        !store
            .remove_secret(&state, "a", &EnvVars::default())
            .unwrap()
    );
    assert_eq!(read("a"), None);
    assert!(!format!("{:?} {:?}", store, reader.find_entry("b")).contains("four"));
}

#[test]
fn exposed_or_damaged_store_is_refused() {
    let (_directory, state, store) = open_test_store();
    set_secret(&store, &state, "a", "one-value");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(store.path(), open).unwrap();
    store.clear_cache();
    let error = store.find_entry("a").unwrap_err();
    assert!(error.to_string().contains("open to other users"), "{error}");
    for text in [
        "",
        "{}",
        r#"{"v":3,"secrets":{}}"#,
        r#"{"v":2,"secrets":{}}"#,
        r#"{"v":2,"sealed":"AAAA"}"#,
        r#"{"v":1,"secrets":{"../a":{"value":"x"}}}"#,
        r#"{"v":1,"secrets":{"a":{"value":""}}}"#,
    ] {
        std::fs::remove_file(store.path()).unwrap();
        state::private_file::replace_file(store.path(), text.as_bytes()).unwrap();
        let error = store.find_entry("a").unwrap_err();
        assert!(error.suggest_fix().is_some(), "{text}: {error}");
    }
}

#[test]
fn sec_73_store_is_encrypted_and_plain_ones_migrate() {
    let (_directory, state, store) = open_test_store();
    // Written by an older version.
    let plain = r#"{"v":1,"secrets":{"a":{"value":"old-canary"},"k":{"keychain":3}}}"#;
    state::private_file::replace_file(store.path(), plain.as_bytes()).unwrap();
    let here = |store: &SecretStore, name: &str| match store.find_entry(name).unwrap() {
        Some(SecretStoreEntry::InFile(value)) => Some(value.to_string()),
        _ => None,
    };
    assert_eq!(here(&store, "a").as_deref(), Some("old-canary"));
    // Interrupted after the key was created: the plain store still counts.
    store.encrypt_plain_store(&state).unwrap();
    let on_disk = |name: &str| std::fs::read(state.path().join(name)).unwrap();
    let key = on_disk("secrets.key");
    state::private_file::replace_file(store.path(), plain.as_bytes()).unwrap();
    store.clear_cache();
    assert_eq!(here(&store, "a").as_deref(), Some("old-canary"));
    store.encrypt_plain_store(&state).unwrap();
    set_secret(&store, &state, "b", "new-canary");
    let text = String::from_utf8(on_disk("secrets.json")).unwrap();
    assert!(
        !text.contains("canary") && !text.contains("\"a\""),
        "{text}"
    );
    assert_eq!(on_disk("secrets.key"), key, "one key for good");
    let reader = SecretStore::in_directory(state.path());
    assert_eq!(here(&reader, "a").as_deref(), Some("old-canary"));
    assert_eq!(here(&reader, "b").as_deref(), Some("new-canary"));
    let kept = reader.find_entry("k").unwrap();
    assert!(
        matches!(kept, Some(SecretStoreEntry::InKeychain(3))),
        "{kept:?}"
    );
    // A modified store and a lost key are reported with a fix.
    let at = text.len() - 8;
    let swapped = if &text[at..=at] == "A" { "B" } else { "A" };
    let changed = [&text[..at], swapped, &text[at + 1..]].concat();
    state::private_file::replace_file(store.path(), changed.as_bytes()).unwrap();
    let error = SecretStore::in_directory(state.path())
        .find_entry("a")
        .unwrap_err();
    assert!(error.to_string().contains("was changed"), "{error}");
    state::private_file::replace_file(store.path(), text.as_bytes()).unwrap();
    std::fs::remove_file(state.path().join("secrets.key")).unwrap();
    let error = SecretStore::in_directory(state.path())
        .find_entry("a")
        .unwrap_err();
    assert!(error.to_string().contains("secrets.key"), "{error}");
    assert!(error.suggest_fix().unwrap().contains("backup"));
    // An unreadable store is not overwritten.
    let env = EnvVars::default();
    let value = SecretValue::new("another".to_owned());
    assert!(
        store
            .set_secret(&state, "c", value, SecretStoreKind::File, &env)
            .is_err()
    );
    assert_eq!(on_disk("secrets.json"), text.as_bytes());
}

#[test]
fn secret_names_cannot_escape() {
    for name in ["a", "GITHUB_TOKEN", "a.b-c_d", "0"] {
        assert!(is_secret_name(name), "{name}");
    }
    let long = "a".repeat(65);
    for name in [
        "", "..", "../x", ".a", "-a", "_a", "a/b", "a b", "a\0", "ä", &long,
    ] {
        assert!(!is_secret_name(name), "{name}");
    }
}
