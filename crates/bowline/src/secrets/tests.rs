//! The store, and when programs are run.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::time::Now;
use bowline_host::ports::Moment;

use super::command::Error as CommandError;
use super::*;
use crate::state::State;

/// A clock that stands where it is put.
#[derive(Debug, Default)]
struct Still(AtomicU64);

impl Still {
    fn set(&self, now: Duration) {
        let micros = u64::try_from(now.as_micros()).unwrap();
        self.0.store(micros, Ordering::Relaxed);
    }
}

impl Clock for Still {
    fn now(&self) -> Now {
        self.moment().now()
    }

    fn moment(&self) -> Moment {
        Moment {
            micros: self.0.load(Ordering::Relaxed),
        }
    }

    fn instant(&self, _at: Now) -> tokio::time::Instant {
        panic!("nobody waits")
    }

    fn unix_ms(&self) -> u64 {
        0
    }
}

fn tool(every: Duration) -> Tool {
    Tool::Command(Arc::new(Command {
        program: "p".into(),
        args: Vec::new(),
        directory: "/".into(),
        every,
    }))
}

#[test]
fn a_program_is_run_when_its_output_is_old_and_a_failure_keeps_what_was_good() {
    let (clock, slot, tool) = (Still::default(), Slot::default(), tool(EVERY));
    let fetch = |why, given: &str| {
        let given = match given {
            "" => Err(CommandError::Nothing),
            given => Ok(Value::new(given.to_owned())),
        };
        let (fetched, is_news) = slot.fetch(&clock, (&tool, why), || given);
        (fetched.ok().map(|value| value.to_string()), is_news)
    };
    let known = || {
        slot.known()
            .and_then(Result::ok)
            .map(|value| value.to_string())
    };
    assert!(slot.is_due(clock.now(), &tool));
    assert_eq!(fetch(Why::Age, "one"), (Some("one".to_owned()), true));
    clock.set(EVERY - Duration::from_secs(1));
    assert!(!slot.is_due(clock.now(), &tool));
    clock.set(EVERY);
    assert!(slot.is_due(clock.now(), &tool));
    assert_eq!(fetch(Why::Age, ""), (None, false));
    assert_eq!(known().as_deref(), Some("one"), "the old one is still good");
    assert!(!slot.is_due(clock.now(), &tool), "not at once again");
    clock.set(EVERY + Duration::from_secs(30));
    assert!(slot.is_due(clock.now(), &tool), "but soon");
    assert_eq!(fetch(Why::Age, "one"), (Some("one".to_owned()), false));
}

#[test]
fn servers_that_refuse_everything_do_not_have_programs_run_all_the_time() {
    let (clock, slot, tool) = (Still::default(), Slot::default(), tool(EVERY));
    let runs = AtomicU64::new(0);
    let fetch = |why| {
        let run = || {
            let nth = runs.fetch_add(1, Ordering::Relaxed);
            Ok(Value::new(format!("value {nth}")))
        };
        slot.fetch(&clock, (&tool, why), run).0.unwrap().to_string()
    };
    assert_eq!(fetch(Why::Age), "value 0");
    assert_eq!(
        fetch(Why::Refused),
        "value 1",
        "the first refusal counts at once"
    );
    for _ in 0..100 {
        assert_eq!(fetch(Why::Refused), "value 1");
    }
    clock.set(slot::REFUSED_AGAIN);
    assert_eq!(fetch(Why::Refused), "value 2");
}

#[test]
fn who_comes_while_a_program_runs_gets_what_it_gives() {
    let (clock, slot, tool) = (Still::default(), Slot::default(), tool(EVERY));
    let runs = AtomicU64::new(0);
    let (begun, go) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let run = || {
                begun.wait();
                go.wait();
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(Value::new("one".to_owned()))
            };
            slot.fetch(&clock, (&tool, Why::Refused), run).0.is_ok()
        });
        begun.wait();
        let others: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let run = || {
                        runs.fetch_add(1, Ordering::Relaxed);
                        Ok(Value::new("two".to_owned()))
                    };
                    slot.fetch(&clock, (&tool, Why::Refused), run).0
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

fn store() -> (tempfile::TempDir, State, Store) {
    let directory = tempfile::tempdir().unwrap();
    let state = State::open(directory.path().join("state")).unwrap();
    let store = Store::of(state.path());
    (directory, state, store)
}

fn set(store: &Store, state: &State, name: &str, value: &str) {
    let value = Value::new(value.to_owned());
    let env = Env::default();
    store
        .set(state, (name, value), StoreKind::File, &env)
        .unwrap();
}

#[test]
fn the_store_is_private_whole_and_read_again_when_it_changes() {
    let (_directory, state, store) = store();
    let reader = Store::of(state.path());
    let read = |name: &str| match reader.entry(name).unwrap() {
        Some(Entry::Here(value)) => Some(value.to_string()),
        _ => None,
    };
    assert_eq!(read("a"), None);
    set(&store, &state, "a", "one-value");
    assert_eq!(read("a").as_deref(), Some("one-value"));
    set(&store, &state, "a", "two-value");
    set(&store, &state, "b", "three\n\"four\"");
    assert_eq!(read("a").as_deref(), Some("two-value"), "at once");
    assert_eq!(read("b").as_deref(), Some("three\n\"four\""));
    let mode = std::fs::metadata(store.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(store.remove(&state, "a", &Env::default()).unwrap());
    assert!(!store.remove(&state, "a", &Env::default()).unwrap());
    assert_eq!(read("a"), None);
    assert!(!format!("{:?} {:?}", store, reader.entry("b")).contains("four"));
}

#[test]
fn a_store_that_others_could_read_or_that_makes_no_sense_is_refused() {
    let (_directory, state, store) = store();
    set(&store, &state, "a", "one-value");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(store.path(), open).unwrap();
    store.forget();
    let error = store.entry("a").unwrap_err();
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
        state::file::replace(store.path(), text.as_bytes()).unwrap();
        let error = store.entry("a").unwrap_err();
        assert!(error.fix().is_some(), "{text}: {error}");
    }
}

#[test]
fn sec_73_store_is_encrypted_and_plain_ones_migrate() {
    let (_directory, state, store) = store();
    // As an older version wrote it.
    let plain = r#"{"v":1,"secrets":{"a":{"value":"old-canary"},"k":{"keychain":3}}}"#;
    state::file::replace(store.path(), plain.as_bytes()).unwrap();
    let here = |store: &Store, name: &str| match store.entry(name).unwrap() {
        Some(Entry::Here(value)) => Some(value.to_string()),
        _ => None,
    };
    assert_eq!(here(&store, "a").as_deref(), Some("old-canary"));
    // Interrupted after the key was made: the plain store still counts.
    store.seal_plain(&state).unwrap();
    let on_disk = |name: &str| std::fs::read(state.path().join(name)).unwrap();
    let key = on_disk("secrets.key");
    state::file::replace(store.path(), plain.as_bytes()).unwrap();
    store.forget();
    assert_eq!(here(&store, "a").as_deref(), Some("old-canary"));
    store.seal_plain(&state).unwrap();
    set(&store, &state, "b", "new-canary");
    let text = String::from_utf8(on_disk("secrets.json")).unwrap();
    assert!(
        !text.contains("canary") && !text.contains("\"a\""),
        "{text}"
    );
    assert_eq!(on_disk("secrets.key"), key, "one key for good");
    let reader = Store::of(state.path());
    assert_eq!(here(&reader, "a").as_deref(), Some("old-canary"));
    assert_eq!(here(&reader, "b").as_deref(), Some("new-canary"));
    let kept = reader.entry("k").unwrap();
    assert!(matches!(kept, Some(Entry::InKeychain(3))), "{kept:?}");
    // A changed store and a lost key say so, and how to mend it.
    let at = text.len() - 8;
    let swapped = if &text[at..=at] == "A" { "B" } else { "A" };
    let changed = [&text[..at], swapped, &text[at + 1..]].concat();
    state::file::replace(store.path(), changed.as_bytes()).unwrap();
    let error = Store::of(state.path()).entry("a").unwrap_err();
    assert!(error.to_string().contains("was changed"), "{error}");
    state::file::replace(store.path(), text.as_bytes()).unwrap();
    std::fs::remove_file(state.path().join("secrets.key")).unwrap();
    let error = Store::of(state.path()).entry("a").unwrap_err();
    assert!(error.to_string().contains("secrets.key"), "{error}");
    assert!(error.fix().unwrap().contains("backup"));
    // What cannot be opened is not overwritten.
    let env = Env::default();
    let value = Value::new("another".to_owned());
    assert!(
        store
            .set(&state, ("c", value), StoreKind::File, &env)
            .is_err()
    );
    assert_eq!(on_disk("secrets.json"), text.as_bytes());
}

#[test]
fn names_of_secrets_lead_nowhere() {
    for name in ["a", "GITHUB_TOKEN", "a.b-c_d", "0"] {
        assert!(is_name(name), "{name}");
    }
    let long = "a".repeat(65);
    for name in [
        "", "..", "../x", ".a", "-a", "_a", "a/b", "a b", "a\0", "ä", &long,
    ] {
        assert!(!is_name(name), "{name}");
    }
}
