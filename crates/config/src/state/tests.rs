//! Permissions of the state directory, and the gateway lock.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn test_state() -> (tempfile::TempDir, StateDir) {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path().join("a/state")).unwrap();
    (directory, state)
}

fn file_mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

fn set_file_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn run_record(pid: u32) -> RunRecord {
    RunRecord {
        v: 1,
        pid,
        started_at_ms: 7,
        url: "http://127.0.0.1:9".into(),
        mcp: "http://127.0.0.1:9/mcp".into(),
        token_file: "/t".into(),
    }
}

#[test]
fn state_dir_comes_from_flag_env_or_xdg() {
    let env = EnvVars::from_pairs([
        ("BOWLINE_STATE", "/e"),
        ("XDG_STATE_HOME", "/x"),
        ("HOME", "/h"),
    ]);
    assert_eq!(
        locate_state_dir(Some(Path::new("/f")), &env).unwrap(),
        Path::new("/f")
    );
    assert_eq!(locate_state_dir(None, &env).unwrap(), Path::new("/e"));
    let env = EnvVars::from_pairs([("XDG_STATE_HOME", "/x")]);
    assert_eq!(
        locate_state_dir(None, &env).unwrap(),
        Path::new("/x/bowline")
    );
    let env = EnvVars::from_pairs([("HOME", "/h")]);
    assert_eq!(
        locate_state_dir(None, &env).unwrap(),
        Path::new("/h/.local/state/bowline")
    );
    assert!(matches!(
        locate_state_dir(None, &EnvVars::default()),
        Err(StateError::NoLocation)
    ));
}

#[test]
fn new_state_dir_is_private() {
    let (_directory, state) = test_state();
    assert_eq!(file_mode(state.path()), 0o700);
    StateDir::open(state.path().to_owned()).unwrap();
}

#[test]
fn linked_or_writable_directory_is_refused() {
    let (directory, state) = test_state();
    let link = directory.path().join("link");
    symlink(state.path(), &link).unwrap();
    assert!(matches!(StateDir::open(link), Err(StateError::Symlink(_))));
    set_file_mode(state.path(), 0o770);
    let error = StateDir::open(state.path().to_owned()).unwrap_err();
    assert_eq!(
        error.suggest_fix(),
        Some(format!("chmod 700 {}", state.path().display()))
    );
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(
        StateDir::open(file),
        Err(StateError::NotDirectory(_))
    ));
}

#[test]
fn owner_token_is_created_once_and_private() {
    let (_directory, state) = test_state();
    let token = state.owner_token().unwrap();
    assert_eq!(token.expose().len(), 64);
    assert!(token.expose().bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(state.owner_token().unwrap(), token);
    assert_eq!(file_mode(&state.token_file()), 0o600);
    let text = std::fs::read_to_string(state.token_file()).unwrap();
    assert_eq!(text, format!("{}\n", token.expose()));
    assert_eq!(format!("{token:?}"), "OwnerCredential(…)");
    // No draft remains.
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1);
}

#[test]
fn concurrent_starts_share_one_token() {
    let (_directory, state) = test_state();
    let tokens: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| state.owner_token().unwrap()))
            .collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    assert!(tokens.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn exposed_token_is_refused_with_fix() {
    let (_directory, state) = test_state();
    state.owner_token().unwrap();
    set_file_mode(&state.token_file(), 0o640);
    let error = state.owner_token().unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("is open to other users (mode 640)"),
        "{error}"
    );
    assert_eq!(
        error.suggest_fix(),
        Some(format!("chmod 600 {}", state.token_file().display()))
    );
}

#[test]
fn linked_or_empty_token_is_refused() {
    let (directory, state) = test_state();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::write(&elsewhere, "abc\n").unwrap();
    set_file_mode(&elsewhere, 0o600);
    symlink(&elsewhere, state.token_file()).unwrap();
    assert!(matches!(state.owner_token(), Err(StateError::Symlink(_))));
    std::fs::write(&elsewhere, "a b\n").unwrap();
    assert!(matches!(
        read_token(&elsewhere),
        Err(StateError::Malformed(_))
    ));
    std::fs::write(&elsewhere, "\n").unwrap();
    assert!(matches!(
        read_token(&elsewhere),
        Err(StateError::Malformed(_))
    ));
}

#[test]
fn session_key_is_stable() {
    let (_directory, state) = test_state();
    let key = state.session_key().unwrap();
    assert_eq!(state.session_key().unwrap(), key);
    assert_ne!(key, [0; 32]);
    std::fs::write(state.path().join("session.key"), "short").unwrap();
    assert!(matches!(state.session_key(), Err(StateError::Malformed(_))));
}

#[test]
fn second_gateway_names_the_running_one() {
    let (_directory, state) = test_state();
    let lock = state.lock_gateway().unwrap();
    assert_eq!(
        state.lock_gateway().unwrap_err().to_string(),
        "bowline is already running and has not said where yet"
    );
    state.write_run(&run_record(std::process::id())).unwrap();
    assert_eq!(
        state.lock_gateway().unwrap_err().to_string(),
        format!(
            "bowline is already running (pid {}, http://127.0.0.1:9)",
            std::process::id()
        )
    );
    drop(lock);
    state.lock_gateway().unwrap();
}

#[test]
fn dropped_lock_unlocks_despite_open_copy() {
    let (_directory, state) = test_state();
    let lock = state.lock_gateway().unwrap();
    let copy = lock.file.try_clone().unwrap();
    drop(lock);
    state.lock_gateway().unwrap();
    drop(copy);
}

#[test]
fn only_one_process_holds_start_lock() {
    let (_directory, state) = test_state();
    let first = state.try_lock_start().unwrap();
    assert!(first.is_some());
    assert!(state.try_lock_start().unwrap().is_none());
    // The start lock is not the gateway lock.
    state.lock_gateway().unwrap();
}

#[test]
fn record_of_dead_process_is_ignored() {
    let (_directory, state) = test_state();
    assert_eq!(read_run(state.path()).unwrap(), None);
    assert_eq!(read_run(Path::new("/nowhere/at/all")).unwrap(), None);
    let alive = run_record(std::process::id());
    state.write_run(&alive).unwrap();
    assert_eq!(file_mode(&state.path().join("run.json")), 0o600);
    assert_eq!(read_run(state.path()).unwrap(), Some(alive));
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    state.write_run(&run_record(child.id())).unwrap();
    assert_eq!(read_run(state.path()).unwrap(), None);
    state.remove_run().unwrap();
    state.remove_run().unwrap();
    std::fs::write(state.path().join("run.json"), "{").unwrap();
    set_file_mode(&state.path().join("run.json"), 0o600);
    assert!(matches!(
        read_run(state.path()),
        Err(StateError::Malformed(_))
    ));
}
