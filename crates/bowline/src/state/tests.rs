//! Who may read, who may write, and what a second gateway is told.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn state() -> (tempfile::TempDir, State) {
    let directory = tempfile::tempdir().unwrap();
    let state = State::open(directory.path().join("a/state")).unwrap();
    (directory, state)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn run(pid: u32) -> Run {
    Run {
        v: 1,
        pid,
        started_at_ms: 7,
        url: "http://127.0.0.1:9".into(),
        mcp: "http://127.0.0.1:9/mcp".into(),
        token_file: "/t".into(),
    }
}

#[test]
fn the_directory_is_where_the_flag_the_environment_or_xdg_says() {
    let env = Env::of([
        ("BOWLINE_STATE", "/e"),
        ("XDG_STATE_HOME", "/x"),
        ("HOME", "/h"),
    ]);
    assert_eq!(
        locate(Some(Path::new("/f")), &env).unwrap(),
        Path::new("/f")
    );
    assert_eq!(locate(None, &env).unwrap(), Path::new("/e"));
    let env = Env::of([("XDG_STATE_HOME", "/x")]);
    assert_eq!(locate(None, &env).unwrap(), Path::new("/x/bowline"));
    let env = Env::of([("HOME", "/h")]);
    assert_eq!(
        locate(None, &env).unwrap(),
        Path::new("/h/.local/state/bowline")
    );
    assert!(matches!(
        locate(None, &Env::default()),
        Err(Error::Homeless)
    ));
}

#[test]
fn a_new_directory_is_private() {
    let (_directory, state) = state();
    assert_eq!(mode(state.path()), 0o700);
    State::open(state.path().to_owned()).unwrap();
}

#[test]
fn a_linked_or_writable_directory_is_refused() {
    let (directory, state) = state();
    let link = directory.path().join("link");
    symlink(state.path(), &link).unwrap();
    assert!(matches!(State::open(link), Err(Error::Symlink(_))));
    set_mode(state.path(), 0o770);
    let error = State::open(state.path().to_owned()).unwrap_err();
    assert_eq!(
        error.fix(),
        Some(format!("chmod 700 {}", state.path().display()))
    );
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(State::open(file), Err(Error::NotDirectory(_))));
}

#[test]
fn a_token_is_made_once_and_is_private() {
    let (_directory, state) = state();
    let token = state.token().unwrap();
    assert_eq!(token.expose().len(), 64);
    assert!(token.expose().bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(state.token().unwrap(), token);
    assert_eq!(mode(&state.token_file()), 0o600);
    let text = std::fs::read_to_string(state.token_file()).unwrap();
    assert_eq!(text, format!("{}\n", token.expose()));
    assert_eq!(format!("{token:?}"), "Token(…)");
    // No draft stays behind.
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1);
}

#[test]
fn two_starts_at_once_agree_on_one_token() {
    let (_directory, state) = state();
    let tokens: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| state.token().unwrap()))
            .collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    assert!(tokens.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_token_that_others_may_read_is_refused_with_the_command_that_mends_it() {
    let (_directory, state) = state();
    state.token().unwrap();
    set_mode(&state.token_file(), 0o640);
    let error = state.token().unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("is open to other users (mode 640)"),
        "{error}"
    );
    assert_eq!(
        error.fix(),
        Some(format!("chmod 600 {}", state.token_file().display()))
    );
}

#[test]
fn a_token_behind_a_link_or_without_content_is_refused() {
    let (directory, state) = state();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::write(&elsewhere, "abc\n").unwrap();
    set_mode(&elsewhere, 0o600);
    symlink(&elsewhere, state.token_file()).unwrap();
    assert!(matches!(state.token(), Err(Error::Symlink(_))));
    std::fs::write(&elsewhere, "a b\n").unwrap();
    assert!(matches!(read_token(&elsewhere), Err(Error::Malformed(_))));
    std::fs::write(&elsewhere, "\n").unwrap();
    assert!(matches!(read_token(&elsewhere), Err(Error::Malformed(_))));
}

#[test]
fn the_session_key_stays_the_same() {
    let (_directory, state) = state();
    let key = state.session_key().unwrap();
    assert_eq!(state.session_key().unwrap(), key);
    assert_ne!(key, [0; 32]);
    std::fs::write(state.path().join("session.key"), "short").unwrap();
    assert!(matches!(state.session_key(), Err(Error::Malformed(_))));
}

#[test]
fn a_second_gateway_is_told_which_one_runs() {
    let (_directory, state) = state();
    let lock = state.lock().unwrap();
    assert_eq!(
        state.lock().unwrap_err().to_string(),
        "bowline is already running and has not said where yet"
    );
    state.write_run(&run(std::process::id())).unwrap();
    assert_eq!(
        state.lock().unwrap_err().to_string(),
        format!(
            "bowline is already running (pid {}, http://127.0.0.1:9)",
            std::process::id()
        )
    );
    drop(lock);
    state.lock().unwrap();
}

#[test]
fn a_lock_is_given_up_even_while_a_copy_of_its_file_is_open() {
    let (_directory, state) = state();
    let lock = state.lock().unwrap();
    let copy = lock.file.try_clone().unwrap();
    drop(lock);
    state.lock().unwrap();
    drop(copy);
}

#[test]
fn only_one_starter_at_a_time() {
    let (_directory, state) = state();
    let first = state.starter().unwrap();
    assert!(first.is_some());
    assert!(state.starter().unwrap().is_none());
    // Starting is not running.
    state.lock().unwrap();
}

#[test]
fn a_record_of_a_dead_process_counts_as_none() {
    let (_directory, state) = state();
    assert_eq!(read_run(state.path()).unwrap(), None);
    assert_eq!(read_run(Path::new("/nowhere/at/all")).unwrap(), None);
    let alive = run(std::process::id());
    state.write_run(&alive).unwrap();
    assert_eq!(mode(&state.path().join("run.json")), 0o600);
    assert_eq!(read_run(state.path()).unwrap(), Some(alive));
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    state.write_run(&run(child.id())).unwrap();
    assert_eq!(read_run(state.path()).unwrap(), None);
    state.remove_run().unwrap();
    state.remove_run().unwrap();
    std::fs::write(state.path().join("run.json"), "{").unwrap();
    set_mode(&state.path().join("run.json"), 0o600);
    assert!(matches!(read_run(state.path()), Err(Error::Malformed(_))));
}
