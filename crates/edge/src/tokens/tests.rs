//! The token store and the token file.

use std::os::unix::fs::PermissionsExt as _;

use bowline_testkit::ManualClock;
use tempfile::TempDir;

use super::*;

struct TokenFixture {
    dir: TempDir,
    clock: Arc<ManualClock>,
}

impl TokenFixture {
    fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
            clock: Arc::new(ManualClock::from_unix_ms(1_000_000)),
        }
    }

    fn state_dir(&self) -> StateDir {
        StateDir::open(self.dir.path().join("state")).unwrap()
    }

    fn open_store(&self) -> Result<TokenStore, state::StateError> {
        TokenStore::open(&self.state_dir(), Arc::clone(&self.clock) as Arc<dyn Clock>)
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

fn token_request(principal: &str) -> TokenRequest {
    TokenRequest {
        principal: principal.into(),
        kind: TokenKind::Agent,
        role: Role::Named("reader".into()),
        contexts: ContextSet::new(["night"]),
        lifetime: None,
        run: None,
    }
}

#[test]
fn token_authenticates_and_survives_restart() {
    let world = TokenFixture::new();
    let tokens = world.open_store().unwrap();
    let (text, made) = tokens.create_token(&token_request("ann")).unwrap();
    assert_eq!(text.len(), "bwl_".len() + 16 + 1 + 43, "{text}");
    assert!(text.starts_with(&format!("bwl_{}_", made.id())), "{text}");
    let path = world.state_dir().tokens_file();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let file = std::fs::read_to_string(&path).unwrap();
    let secret = text.rsplit_once(&format!("{}_", made.id())).unwrap().1;
    assert!(!file.contains(secret), "{file}");
    for tokens in [tokens, world.open_store().unwrap()] {
        let found = tokens.find_token(&text).unwrap().principal.clone();
        assert_eq!(*found.name, *"ann");
        assert_eq!(found.role, Role::Named("reader".into()));
        assert_eq!(found.contexts, ContextSet::new(["night"]));
        assert_eq!(found.credential, *made.id());
    }
}

#[test]
fn invalid_token_text_authenticates_nobody() {
    let world = TokenFixture::new();
    let tokens = world.open_store().unwrap();
    let (text, made) = tokens.create_token(&token_request("ann")).unwrap();
    let (other, _) = tokens.create_token(&token_request("bob")).unwrap();
    for at in 0..text.len() {
        let mut wrong = text.clone().into_bytes();
        wrong[at] = if wrong[at] == b'A' { b'B' } else { b'A' };
        let wrong = String::from_utf8(wrong).unwrap();
        assert!(tokens.find_token(&wrong).is_none(), "byte {at}");
    }
    let crossed = format!("bwl_{}_{}", made.id(), &other[21..]);
    let no_secret = format!("bwl_{}_", made.id());
    for wrong in ["", "bwl_", "bwl__", made.id(), &crossed, &no_secret] {
        assert!(tokens.find_token(wrong).is_none(), "{wrong}");
    }
    assert!(tokens.find_token(&format!("{text} ")).is_none());
    assert!(tokens.find_token(&text).is_some());
}

#[test]
fn revoked_token_is_gone_after_restart() {
    let world = TokenFixture::new();
    let tokens = world.open_store().unwrap();
    let (first, one) = tokens.create_token(&token_request("ann")).unwrap();
    let (second, _) = tokens.create_token(&token_request("ann")).unwrap();
    let (third, _) = tokens.create_token(&token_request("bob")).unwrap();
    assert_eq!(tokens.revoke_tokens(one.id()).len(), 1);
    assert!(one.is_ended());
    assert!(tokens.find_token(&first).is_none());
    assert!(tokens.find_token(&second).is_some());
    // Creating another token does not restore a revoked token.
    tokens.create_token(&token_request("cid")).unwrap();
    assert!(tokens.find_token(&first).is_none());
    assert_eq!(tokens.revoke_tokens("ann").len(), 1, "what is left of ann");
    assert!(tokens.revoke_tokens("nobody").is_empty());
    tokens.save().unwrap();
    let tokens = world.open_store().unwrap();
    assert!(tokens.find_token(&first).is_none() && tokens.find_token(&second).is_none());
    assert!(tokens.find_token(&third).is_some());
}

#[test]
fn token_ends_at_expiry() {
    let world = TokenFixture::new();
    let tokens = world.open_store().unwrap();
    let life = Duration::from_secs(60);
    let short = TokenRequest {
        lifetime: Some(life),
        ..token_request("ann")
    };
    let (text, made) = tokens.create_token(&short).unwrap();
    assert_eq!(tokens.next_expiry(), Some(life));
    world.advance(life - Duration::from_millis(1));
    assert!(tokens.find_token(&text).is_some());
    assert!(tokens.end_expired().is_empty());
    world.advance(Duration::from_millis(1));
    assert!(tokens.find_token(&text).is_none());
    let ended: Vec<_> = tokens
        .end_expired()
        .iter()
        .map(|one| one.id().clone())
        .collect();
    assert_eq!(ended, [made.id().clone()]);
    assert!(tokens.end_expired().is_empty(), "told once");
    assert_eq!(tokens.next_expiry(), None);
    assert_eq!(
        tokens.list_tokens().len(),
        1,
        "people are shown that it ended"
    );
    assert!(world.open_store().unwrap().find_token(&text).is_none());
    world.advance(EXPIRED_LISTED);
    assert!(world.open_store().unwrap().list_tokens().is_empty());
}

#[test]
fn expiring_tokens_are_reported() {
    let world = TokenFixture::new();
    let tokens = world.open_store().unwrap();
    let day = Duration::from_secs(24 * 3_600);
    let lives = [Some(day * 30), Some(day), None];
    let made = lives.map(|life| {
        let wanted = TokenRequest {
            lifetime: life,
            ..token_request("ann")
        };
        tokens.create_token(&wanted).unwrap().1
    });
    let of_run = TokenRequest {
        lifetime: Some(day * 30),
        run: Some("claude".into()),
        ..token_request("ann")
    };
    let of_run = tokens.create_token(&of_run).unwrap().1;
    for (after, expected) in [
        (day * 22, false),
        (day * 23, true),
        (day * 29, true),
        (day * 30, false),
    ] {
        let now = made[0].created_ms + to_millis(after);
        assert_eq!(made[0].is_expiring_soon(now), expected, "{after:?}");
        assert!(!made[2].is_expiring_soon(now) && !of_run.is_expiring_soon(now));
    }
    // A short-lived token causes no notice.
    assert!(!made[1].is_expiring_soon(made[1].created_ms));
}

#[test]
fn damaged_token_file_is_refused_with_fix() {
    let world = TokenFixture::new();
    let tokens = world.open_store().unwrap();
    tokens.create_token(&token_request("ann")).unwrap();
    let path = world.state_dir().tokens_file();
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
        let error = world.open_store().unwrap_err();
        assert!(
            matches!(error, state::StateError::Corrupt { .. }),
            "{wrong}"
        );
        let fix = error.suggest_fix().unwrap();
        assert!(fix.contains("make every token anew"), "{fix}");
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(world.open_store().unwrap().list_tokens().len(), 1);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&path, open).unwrap();
    let error = world.open_store().unwrap_err();
    assert!(
        matches!(error, state::StateError::Exposed { .. }),
        "{error}"
    );
}

#[test]
fn token_count_is_bounded() {
    let world = TokenFixture::new();
    let path = world.state_dir().tokens_file();
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
        world.open_store().unwrap()
    };
    let tokens = fill(0);
    let refused = tokens.create_token(&token_request("ann"));
    assert!(
        matches!(refused, Err(TokenCreateError::TooMany)),
        "{refused:?}"
    );
    assert_eq!(tokens.list_tokens().len(), TOKENS_MAX);
    // An expired token makes room.
    let tokens = fill(1);
    let (text, _) = tokens.create_token(&token_request("ann")).unwrap();
    assert!(tokens.find_token(&text).is_some());
    assert_eq!(tokens.list_tokens().len(), TOKENS_MAX);
}
