//! What a worker offers to its hub, and whom it serves there.

use std::sync::Arc;

use bowline_core::call::Role;
use bowline_host::broker::{Federation, Guests as _, Wares};
use bowline_host::spec::Side;
use bowline_host::{Host, HostLimits, Otherwise, Pattern, Policy, RoleRules};
use bowline_sim::{Act, Generation, Script, World, reaches, spec};
use bowline_wire::broker::From;

use crate::peer::Peer;

async fn host() -> Host {
    let well = || Script::always(Generation::tools([("do", Act::Answers)]));
    let world = World::new([("build-a", well()), ("private", well())]);
    let host = world.host(
        vec![spec("build-a"), spec("private")],
        HostLimits::default(),
    );
    for server in ["build-a", "private"] {
        assert!(reaches(&host, server, "ready").await);
    }
    host
}

fn wares(host: &Host, patterns: &[&str]) -> Wares {
    let patterns = patterns.iter().map(|text| Pattern::parse(text).unwrap());
    Wares::new(host, patterns.collect())
}

fn from(role: Option<&str>) -> From {
    From {
        session_id: "hub".into(),
        role: role.map(Arc::from),
        principal: Some("alice".into()),
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_fit_are_offered_and_never_what_came_from_a_peer() {
    let host = host().await;
    let peer = Peer::new("hub", &[("build-b", "x"), ("build-a", "x")]);
    let offered = wares(&host, &["build-*"]);
    let federation = Federation {
        host: host.clone(),
        side: Side::Hub,
        keep: None,
        own: Some(offered.clone()),
    };
    let following = federation.follow(peer.remote());
    assert!(reaches(&host, "build-b", "ready").await);
    // What we offered comes back from the hub, and is no collision.
    assert_eq!(*following.refused().borrow(), []);
    let said = offered.servers();
    let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
    assert_eq!(said.as_array().unwrap().len(), 1, "{said}");
    assert_eq!(said[0]["name"], "build-a");
    assert_eq!(said[0]["tools"][0]["name"], "do");
    for (server, is_served) in [("build-a", true), ("build-b", false), ("private", false)] {
        assert_eq!(offered.serves(server), is_served, "{server}");
    }
    assert_eq!(&*wares(&host, &[]).servers(), b"[]");
}

#[tokio::test(start_paused = true)]
async fn a_role_counts_only_where_it_is_defined_here_and_for_what_it_may_here() {
    let host = host().await;
    let offered = wares(&host, &["*"]);
    let all = offered.principal(&from(None)).unwrap();
    assert_eq!((&*all.name, &all.role), ("hub:alice", &Role::OwnersAgent));

    let rules = RoleRules {
        allow: vec![Pattern::parse("build-a.*").unwrap()],
        ..RoleRules::default()
    };
    let policy = Policy::new(Otherwise::Allow)
        .with_role("builder", rules.clone())
        .with_role("hub-owner", rules)
        .with_principal("alice", "builder");
    host.set_policy(policy);
    let builder = offered.principal(&from(Some("builder"))).unwrap();
    assert_eq!(builder.role, Role::Named("builder".into()));
    let owner = offered.principal(&from(Some("owner"))).unwrap();
    assert_eq!(owner.role, Role::Named("hub-owner".into()));
    // Neither a role that nobody defined here, nor a name that means somebody else here.
    for role in [None, Some("admin"), Some("")] {
        assert_eq!(offered.principal(&from(role)), None, "{role:?}");
    }
}
