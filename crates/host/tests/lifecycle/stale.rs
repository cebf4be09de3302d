//! What is shown of a server that is away: what it last offered, marked, and never what it was
//! refused.

use std::sync::Arc;

use bowline_core::call::{Principal, Role, Scope};
use bowline_core::error::{Class, Execution};
use bowline_core::policy::{Otherwise, Pattern, Policy, RoleRules};
use bowline_host::Host;
use bowline_host::catalog::{ListKind, Listing};
use bowline_link::{Exit, LinkError};
use bowline_sim::{Act, Gate, Generation, Script, ScriptedDial, World, call, reaches, spec};
use serde_json::Value;

use super::failing::{refused, unauthorized};
use super::{Kept, OddDial, host, remote, well};

const STALE: &str = "dev.bowline/stale";

fn list(host: &Host, scope: &Scope) -> Listing {
    host.catalog().listing(scope, ListKind::Tools)
}

/// The tools of a list, and whether each is marked.
fn tools(list: &Listing) -> Vec<(String, bool)> {
    let list: Value = serde_json::from_slice(&list.result).unwrap();
    let tools = list["tools"].as_array().unwrap().iter();
    let one = |tool: &Value| {
        let name = tool["name"].as_str().unwrap().to_owned();
        (name, tool["_meta"][STALE] == true)
    };
    tools.map(one).collect()
}

fn marked(name: &str) -> Vec<(String, bool)> {
    vec![(name.to_owned(), true)]
}

fn plain(name: &str) -> Vec<(String, bool)> {
    vec![(name.to_owned(), false)]
}

/// Another life of the gateway, after one in which everything was well.
async fn second_life(script: Script) -> (World, Arc<Kept>) {
    let kept = Arc::new(Kept::default());
    let world = World::new([("s", script)]);
    let first = host(ScriptedDial::new(world.clone()), &kept, vec![remote("s")]);
    assert!(reaches(&first, "s", "ready").await);
    first.shutdown().await;
    (world, kept)
}

#[tokio::test(start_paused = true)]
async fn the_menu_of_a_server_that_is_down_is_marked_and_the_mark_is_no_change() {
    let gate = Gate::closed();
    let world = World::new([
        ("s", Script::always(well()).then(well().hangs(&gate))),
        ("t", Script::always(well())),
    ]);
    let host = world.host(
        vec![spec("s"), spec("t")],
        bowline_host::HostLimits::default(),
    );
    assert!(reaches(&host, "s", "ready").await && reaches(&host, "t", "ready").await);
    let (all, own) = (Scope::All, Scope::Server("s".into()));
    let (before, before_own) = (list(&host, &all), list(&host, &own));
    assert_eq!(tools(&before_own), plain("do"));
    assert!(!host.status_of("s").unwrap().stale);

    assert!(world.kill("s", Exit::Signal(9)));
    assert!(reaches(&host, "s", "starting").await);
    let down = list(&host, &all);
    assert_eq!(
        tools(&down),
        [("s__do".to_owned(), true), ("t__do".to_owned(), false)],
        "one server is away and the other is not"
    );
    assert_eq!(tools(&list(&host, &own)), marked("do"));
    assert!(host.status_of("s").unwrap().stale);
    // Whoever compares what it knows finds no news: agents do not list again for it.
    assert_eq!(down.fingerprint, before.fingerprint);
    assert_eq!(list(&host, &own).fingerprint, before_own.fingerprint);

    gate.release();
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(list(&host, &all).result, before.result, "byte for byte");
    assert_eq!(list(&host, &own).result, before_own.result);
    assert!(!host.status_of("s").unwrap().stale);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_of_the_gateway_the_last_known_menu_of_a_dead_server_is_served_marked() {
    let (world, kept) = second_life(Script::always(well())).await;
    let errors = (0..3).map(|_| refused(LinkError::Unreachable("no route".into())));
    let second = host(OddDial::new(&world, errors), &kept, vec![remote("s")]);
    assert_eq!(tools(&list(&second, &Scope::All)), marked("s__do"));
    assert!(reaches(&second, "s", "backoff").await);
    assert_eq!(tools(&list(&second, &Scope::All)), marked("s__do"));
    assert_eq!(second.status_of("s").unwrap().manifest, "last_known");
    assert!(reaches(&second, "s", "ready").await);
    assert_eq!(tools(&list(&second, &Scope::All)), plain("s__do"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_waits_to_be_needed_is_not_away() {
    let (world, kept) = second_life(Script::always(well())).await;
    let mut lazily = remote("s");
    lazily.lazy = true;
    let second = host(ScriptedDial::new(world), &kept, vec![lazily]);
    assert_eq!(tools(&list(&second, &Scope::All)), plain("s__do"));
    assert!(!second.status_of("s").unwrap().stale);
}

#[tokio::test(start_paused = true)]
async fn a_server_never_seen_has_an_empty_menu_in_an_outage_and_no_error() {
    let world = World::new([("s", Script::always(well()))]);
    let errors = (0..3).map(|_| refused(LinkError::Unreachable("no route".into())));
    let host = host(
        OddDial::new(&world, errors),
        &Arc::default(),
        vec![remote("s")],
    );
    assert!(reaches(&host, "s", "backoff").await);
    assert!(tools(&list(&host, &Scope::All)).is_empty());
    let status = host.status_of("s").unwrap();
    assert_eq!((status.manifest, status.stale), ("none", false));
    // What it may have is announced all the same, so that clients listen for changes.
    let owner = Principal::new("owner", Role::Owner);
    let said = host.introduction(&owner, &Scope::All).capabilities;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains(r#""tools":{"listChanged":true}"#), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_no_outage_and_nothing_is_shown_until_a_list_succeeds_again() {
    let answer = || {
        refused(LinkError::Http {
            status: 500,
            preview: "".into(),
        })
    };
    for (error, class) in [
        (unauthorized(401), Class::AuthRequired),
        (unauthorized(403), Class::ScopeRequired),
        (answer(), Class::ConnectFailed),
    ] {
        let (world, kept) = second_life(Script::always(well())).await;
        let is_credentials = class != Class::ConnectFailed;
        let second = host(OddDial::new(&world, [error]), &kept, vec![remote("s")]);
        assert_eq!(
            tools(&list(&second, &Scope::All)),
            marked("s__do"),
            "nobody knows yet"
        );
        assert!(reaches(&second, "s", "backoff").await);
        assert!(tools(&list(&second, &Scope::All)).is_empty());
        assert!(
            kept.manifests.lock().unwrap().is_empty(),
            "nor by the next life"
        );
        if is_credentials {
            // Told at once, although the next try is due in a moment.
            let error = second.call(call("s__do", "{}")).await.unwrap_err();
            assert_eq!(error.class(), class, "{error}");
            assert_eq!(error.execution(), Execution::NotStarted);
            assert_eq!(
                second.status_of("s").unwrap().last_error.unwrap().class,
                class.as_str()
            );
        }
        assert!(reaches(&second, "s", "ready").await);
        assert_eq!(tools(&list(&second, &Scope::All)), plain("s__do"));
        assert_eq!(kept.manifests.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_gateway_before_the_server_is_an_outage() {
    for status in [502, 503, 504] {
        let (world, kept) = second_life(Script::always(well())).await;
        let error = refused(LinkError::Http {
            status,
            preview: "".into(),
        });
        let second = host(OddDial::new(&world, [error]), &kept, vec![remote("s")]);
        assert!(reaches(&second, "s", "backoff").await);
        assert_eq!(
            tools(&list(&second, &Scope::All)),
            marked("s__do"),
            "{status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_refused_at_the_start_takes_the_last_known_one_away() {
    // Its second page is an error.
    let refusing = well().page("", &["do"], Some("c"));
    let (world, kept) = second_life(Script::always(well()).then(refusing)).await;
    let second = host(ScriptedDial::new(world), &kept, vec![remote("s")]);
    assert!(reaches(&second, "s", "backoff").await);
    assert!(tools(&list(&second, &Scope::All)).is_empty());
    assert_eq!(
        second.status_of("s").unwrap().last_error.unwrap().class,
        Class::ProtocolError.as_str()
    );
}

#[tokio::test(start_paused = true)]
async fn the_rules_hold_for_a_last_known_menu_as_for_any() {
    let two = || Generation::tools([("do", Act::Answers), ("undo", Act::Answers)]);
    let (world, kept) = second_life(Script::always(two())).await;
    let errors = (0..9).map(|_| refused(LinkError::Unreachable("no route".into())));
    let second = host(OddDial::new(&world, errors), &kept, vec![remote("s")]);
    let rules = RoleRules {
        allow: vec![Pattern::parse("s.do").unwrap()],
        ..RoleRules::default()
    };
    second.set_policy(Policy::new(Otherwise::Deny).with_role("half", rules));
    assert!(reaches(&second, "s", "backoff").await);
    let half = Principal::new("p", Role::Named("half".into()));
    let none = Principal::new("p", Role::None);
    let view = |who: &Principal| tools(&second.view(who, &Scope::All, ListKind::Tools));
    assert_eq!(view(&half), marked("s__do"));
    assert!(view(&none).is_empty());
    let agent = Principal::new("owner:claude", Role::OwnersAgent);
    assert_eq!(view(&agent).len(), 2);
}
