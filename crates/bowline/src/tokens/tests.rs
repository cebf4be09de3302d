//! Tokens and their file, without a gateway.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::AtomicU64;

use bowline_core::time::Now;
use tempfile::TempDir;

use super::*;

/// A wall clock that tests turn.
#[derive(Debug, Default)]
struct Wall(AtomicU64);

impl Clock for Wall {
    fn now(&self) -> Now {
        Now(0)
    }

    fn instant(&self, _: Now) -> tokio::time::Instant {
        unreachable!("no token sets a timer")
    }

    fn unix_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct World {
    dir: TempDir,
    wall: Arc<Wall>,
}

impl World {
    fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
            wall: Arc::new(Wall(AtomicU64::new(1_000_000))),
        }
    }

    fn state(&self) -> State {
        State::open(self.dir.path().join("state")).unwrap()
    }

    fn open(&self) -> Result<Tokens, state::Error> {
        Tokens::open(&self.state(), Arc::clone(&self.wall) as Arc<dyn Clock>)
    }

    fn later(&self, by: Duration) {
        self.wall.0.fetch_add(millis(by), Ordering::Relaxed);
    }
}

fn wanted(principal: &str) -> Wanted {
    Wanted {
        principal: principal.into(),
        kind: TokenKind::Agent,
        role: Role::Named("reader".into()),
        contexts: Contexts::new(["night"]),
        life: None,
        run: None,
    }
}

#[test]
fn a_token_proves_its_principal_and_survives_a_restart_as_a_hash() {
    let world = World::new();
    let tokens = world.open().unwrap();
    let (text, made) = tokens.create(&wanted("ann")).unwrap();
    assert_eq!(text.len(), "bwl_".len() + 16 + 1 + 43, "{text}");
    assert!(text.starts_with(&format!("bwl_{}_", made.id())), "{text}");
    let path = world.state().tokens_file();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let file = std::fs::read_to_string(&path).unwrap();
    let secret = text.rsplit_once(&format!("{}_", made.id())).unwrap().1;
    assert!(!file.contains(secret), "{file}");
    for tokens in [tokens, world.open().unwrap()] {
        let found = tokens.find(&text).unwrap().principal.clone();
        assert_eq!(*found.name, *"ann");
        assert_eq!(found.role, Role::Named("reader".into()));
        assert_eq!(found.contexts, Contexts::new(["night"]));
        assert_eq!(found.credential, *made.id());
    }
}

#[test]
fn every_other_text_proves_nobody() {
    let world = World::new();
    let tokens = world.open().unwrap();
    let (text, made) = tokens.create(&wanted("ann")).unwrap();
    let (other, _) = tokens.create(&wanted("bob")).unwrap();
    for at in 0..text.len() {
        let mut wrong = text.clone().into_bytes();
        wrong[at] = if wrong[at] == b'A' { b'B' } else { b'A' };
        let wrong = String::from_utf8(wrong).unwrap();
        assert!(tokens.find(&wrong).is_none(), "byte {at}");
    }
    let crossed = format!("bwl_{}_{}", made.id(), &other[21..]);
    let no_secret = format!("bwl_{}_", made.id());
    for wrong in ["", "bwl_", "bwl__", made.id(), &crossed, &no_secret] {
        assert!(tokens.find(wrong).is_none(), "{wrong}");
    }
    assert!(tokens.find(&format!("{text} ")).is_none());
    assert!(tokens.find(&text).is_some());
}

#[test]
fn a_revoked_token_is_gone_at_once_and_after_a_restart() {
    let world = World::new();
    let tokens = world.open().unwrap();
    let (first, one) = tokens.create(&wanted("ann")).unwrap();
    let (second, _) = tokens.create(&wanted("ann")).unwrap();
    let (third, _) = tokens.create(&wanted("bob")).unwrap();
    assert_eq!(tokens.revoke(one.id()).len(), 1);
    assert!(one.is_over());
    assert!(tokens.find(&first).is_none());
    assert!(tokens.find(&second).is_some());
    // A token that is made now does not bring it back.
    tokens.create(&wanted("cid")).unwrap();
    assert!(tokens.find(&first).is_none());
    assert_eq!(tokens.revoke("ann").len(), 1, "what is left of ann");
    assert!(tokens.revoke("nobody").is_empty());
    tokens.save().unwrap();
    let tokens = world.open().unwrap();
    assert!(tokens.find(&first).is_none() && tokens.find(&second).is_none());
    assert!(tokens.find(&third).is_some());
}

#[test]
fn a_token_ends_when_its_time_has_come() {
    let world = World::new();
    let tokens = world.open().unwrap();
    let life = Duration::from_secs(60);
    let short = Wanted {
        life: Some(life),
        ..wanted("ann")
    };
    let (text, made) = tokens.create(&short).unwrap();
    assert_eq!(tokens.next_end(), Some(life));
    world.later(life - Duration::from_millis(1));
    assert!(tokens.find(&text).is_some());
    assert!(tokens.expire().is_empty());
    world.later(Duration::from_millis(1));
    assert!(tokens.find(&text).is_none());
    let ended: Vec<_> = tokens.expire().iter().map(|one| one.id().clone()).collect();
    assert_eq!(ended, [made.id().clone()]);
    assert!(tokens.expire().is_empty(), "told once");
    assert_eq!(tokens.next_end(), None);
    assert_eq!(tokens.all().len(), 1, "people are shown that it ended");
    assert!(world.open().unwrap().find(&text).is_none());
    world.later(EXPIRED_SHOWN);
    assert!(world.open().unwrap().all().is_empty());
}

#[test]
fn tokens_that_end_soon_are_pointed_out() {
    let world = World::new();
    let tokens = world.open().unwrap();
    let day = Duration::from_secs(24 * 3_600);
    let lives = [Some(day * 30), Some(day), None];
    let made = lives.map(|life| {
        let wanted = Wanted {
            life,
            ..wanted("ann")
        };
        tokens.create(&wanted).unwrap().1
    });
    let of_run = Wanted {
        life: Some(day * 30),
        run: Some("claude".into()),
        ..wanted("ann")
    };
    let of_run = tokens.create(&of_run).unwrap().1;
    for (after, expected) in [
        (day * 22, false),
        (day * 23, true),
        (day * 29, true),
        (day * 30, false),
    ] {
        let now = made[0].created_ms + millis(after);
        assert_eq!(made[0].ends_soon(now), expected, "{after:?}");
        assert!(!made[2].ends_soon(now) && !of_run.ends_soon(now));
    }
    // A token that is made for a short time is not pointed out all that time.
    assert!(!made[1].ends_soon(made[1].created_ms));
}

#[test]
fn a_file_that_does_not_hold_tokens_is_refused_with_the_way_out() {
    let world = World::new();
    let tokens = world.open().unwrap();
    tokens.create(&wanted("ann")).unwrap();
    let path = world.state().tokens_file();
    let good = std::fs::read_to_string(&path).unwrap();
    let entry = &good[good.find("[{").unwrap() + 1..good.rfind(']').unwrap()];
    for wrong in [
        String::new(),
        "{}".to_owned(),
        "null".to_owned(),
        good[..good.len() / 2].to_owned(),
        good.replace("\"v\":1", "\"v\":2"),
        good.replace("\"ann\"", "\"owner\""),
        good.replace("\"ann\"", "\"Ann\""),
        good.replace("secret_sha256\":\"", "secret_sha256\":\"0"),
        good.replace("\"role\"", "\"rule\""),
        good.replace(entry, &format!("{entry},{entry}")),
    ] {
        std::fs::write(&path, &wrong).unwrap();
        let error = world.open().unwrap_err();
        assert!(matches!(error, state::Error::Corrupt { .. }), "{wrong}");
        let fix = error.fix().unwrap();
        assert!(fix.contains("make every token anew"), "{fix}");
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(world.open().unwrap().all().len(), 1);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&path, open).unwrap();
    let error = world.open().unwrap_err();
    assert!(matches!(error, state::Error::Exposed { .. }), "{error}");
}

#[test]
fn names_of_principals_are_plain_and_not_the_gateways_own() {
    let long = "a".repeat(PRINCIPAL_CHARS_MAX);
    for good in ["a", "0", "ann.b_c-d", &long] {
        assert!(is_principal(good), "{good}");
    }
    let longer = "a".repeat(PRINCIPAL_CHARS_MAX + 1);
    for wrong in [
        "",
        "Ann",
        "-a",
        ".a",
        "a b",
        "a/b",
        "a\n",
        "ä",
        "owner",
        "anonymous-local",
        &longer,
    ] {
        assert!(!is_principal(wrong), "{wrong}");
    }
}

#[test]
fn there_are_so_many_tokens_and_no_more() {
    let world = World::new();
    let path = world.state().tokens_file();
    let fill = |expired: usize| {
        let tokens = (0..TOKENS_MAX).map(|nth| {
            let expires = if nth < expired { "1000" } else { "null" };
            format!(
                r#"{{"id":"{nth:016x}","principal":"p","role":null,"contexts":[],"created_at_ms":1,
                "expires_at_ms":{expires},"secret_sha256":"{nth:064x}"}}"#
            )
        });
        let tokens: Vec<_> = tokens.collect();
        let text = format!(r#"{{"v":1,"tokens":[{}]}}"#, tokens.join(","));
        std::fs::write(&path, text).unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).unwrap();
        world.open().unwrap()
    };
    let tokens = fill(0);
    let refused = tokens.create(&wanted("ann"));
    assert!(matches!(refused, Err(CreateError::TooMany)), "{refused:?}");
    assert_eq!(tokens.all().len(), TOKENS_MAX);
    // One that has expired makes room.
    let tokens = fill(1);
    let (text, _) = tokens.create(&wanted("ann")).unwrap();
    assert!(tokens.find(&text).is_some());
    assert_eq!(tokens.all().len(), TOKENS_MAX);
}
