//! What a server offered in another life of the gateway.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Scope;
use bowline_core::era::Era;
use bowline_host::Host;
use bowline_host::catalog::ListKind;
use bowline_sim::{Act, Gate, Generation, Script, ScriptedDial, World, call, reaches, spec};

use super::{Kept, OddDial, host, lazy, pass, settle, well};

fn tools(host: &Host) -> String {
    let list = host.catalog().listing(&Scope::All, ListKind::Tools).result;
    String::from_utf8_lossy(&list).into_owned()
}

fn one(script: Script) -> World {
    World::new([("s", script)])
}

#[tokio::test(start_paused = true)]
async fn a_lazy_server_is_listed_from_its_last_life_and_started_by_its_first_call() {
    let kept = Arc::new(Kept::default());
    let world = one(Script::always(well()));
    let first = host(ScriptedDial::new(world.clone()), &kept, vec![spec("s")]);
    assert!(reaches(&first, "s", "ready").await);
    first.shutdown().await;

    let second = host(ScriptedDial::new(world.clone()), &kept, vec![lazy("s")]);
    assert!(tools(&second).contains("s__do"), "before anything ran");
    second.settled().await;
    second.shown(&Scope::All).await;
    settle().await;
    assert_eq!(second.status_of("s").unwrap().state, "idle");
    assert_eq!(world.record().starts_of("s"), 1, "listing starts nothing");
    second.call(call("s__do", "{}")).await.unwrap();
    assert_eq!(world.record().starts_of("s"), 2);
    assert_eq!(*kept.saves.lock().unwrap(), 1, "it offers the same");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_still_starting_is_listed_from_its_last_life() {
    let kept = Arc::new(Kept::default());
    let gate = Gate::closed();
    let newer = Generation::tools([("other", Act::Answers)]);
    let world = one(Script::always(well()).then(newer.hangs(&gate)));
    let first = host(ScriptedDial::new(world.clone()), &kept, vec![spec("s")]);
    assert!(reaches(&first, "s", "ready").await);
    first.shutdown().await;

    let second = host(ScriptedDial::new(world.clone()), &kept, vec![spec("s")]);
    assert!(tools(&second).contains("s__do"));
    gate.release();
    assert!(reaches(&second, "s", "ready").await);
    assert!(tools(&second).contains("s__other"));
    assert!(
        !tools(&second).contains("s__do"),
        "it offers other things now"
    );
    assert_eq!(*kept.saves.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn kept_era_is_recalled_before_first_start() {
    let modern = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;
    for (script, era) in [
        (well(), Era::Legacy),
        (well().introduces(modern), Era::Modern),
    ] {
        let kept = Arc::new(Kept::default());
        let world = one(Script::always(script));
        for recalled in [&[][..], &[era]] {
            let dial = OddDial::new(&world, []);
            let life = host(dial.clone(), &kept, vec![spec("s")]);
            assert_eq!(*dial.recalled.lock().unwrap(), recalled);
            assert!(reaches(&life, "s", "ready").await);
            life.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_program_offered_says_nothing() {
    let kept = Arc::new(Kept::default());
    let world = one(Script::always(well()));
    let first = host(ScriptedDial::new(world.clone()), &kept, vec![spec("s")]);
    assert!(reaches(&first, "s", "ready").await);
    first.shutdown().await;
    let mut other = bowline_host::spec::ServerSpec::new("s", "another");
    other.lazy = true;
    let second = host(ScriptedDial::new(world.clone()), &kept, vec![other]);
    assert!(!tools(&second).contains("s__do"));
}

#[tokio::test(start_paused = true)]
async fn a_changed_list_is_kept_and_the_others_stay() {
    let kept = Arc::new(Kept::default());
    let world = one(Script::always(well()));
    let first = host(ScriptedDial::new(world.clone()), &kept, vec![spec("s")]);
    assert!(reaches(&first, "s", "ready").await);
    let mut changes = first.catalog_changes();
    changes.borrow_and_update();
    assert!(world.change("s", Generation::tools([("new", Act::Answers)])));
    changes.changed().await.unwrap();
    first.shutdown().await;
    let second = host(ScriptedDial::new(world.clone()), &kept, vec![lazy("s")]);
    assert!(tools(&second).contains("s__new"), "{}", tools(&second));
}

#[tokio::test(start_paused = true)]
async fn a_lazy_server_never_seen_is_started_by_the_first_list_that_would_show_it() {
    let world = World::new([
        ("a", Script::always(well())),
        ("b", Script::always(well())),
        ("c", Script::always(well().hangs(&Gate::closed()))),
    ]);
    let specs = ["a", "b", "c"].map(lazy).to_vec();
    let host = host(ScriptedDial::new(world.clone()), &Arc::default(), specs);
    host.settled().await;
    settle().await;
    assert!(world.record().starts.is_empty());

    host.shown(&Scope::Server("b".into())).await;
    assert_eq!(world.record().starts_of("b"), 1);
    assert_eq!(world.record().starts.len(), 1, "only what would be shown");
    assert!(tools(&host).contains("b__do"));

    let before = host.clock().now();
    host.shown(&Scope::All).await;
    assert!(tools(&host).contains("a__do"));
    let waited = host.clock().now().millis_since(before);
    assert_eq!(
        waited, 1_500,
        "one that hangs holds up a list, but not long"
    );
    let before = host.clock().now();
    host.shown(&Scope::All).await;
    assert_eq!(host.clock().now(), before, "later lists wait for nobody");
    pass(Duration::from_secs(1)).await;
    assert_eq!(world.record().starts.len(), 3);
}
