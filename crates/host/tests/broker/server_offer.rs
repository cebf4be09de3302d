//! A worker's offer to the hub, and the roles of the hub's callers.

use std::sync::Arc;

use bowline_core::call::Role;
use bowline_host::broker::frames::MessageSender;
use bowline_host::broker::{CallerMapping as _, Federation, ServerOffer};
use bowline_host::spec::PeerRole;
use bowline_host::{DefaultAction, FeaturePattern, Host, HostLimits, Policy, RoleRules};
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, ToolBehaviour, server_spec, wait_for_state,
};

use crate::fake_peer::FakePeer;

async fn host() -> Host {
    let well = || {
        ServerScript::always(GenerationScript::with_tools([(
            "do",
            ToolBehaviour::Respond,
        )]))
    };
    let world = SimWorld::new([("build-a", well()), ("private", well())]);
    let host = world.start_host(
        vec![server_spec("build-a"), server_spec("private")],
        HostLimits::default(),
    );
    for server in ["build-a", "private"] {
        assert!(wait_for_state(&host, server, "ready").await);
    }
    host
}

fn server_offer(host: &Host, patterns: &[&str]) -> ServerOffer {
    let patterns = patterns
        .iter()
        .map(|text| FeaturePattern::parse(text).unwrap());
    ServerOffer::new(host, patterns.collect())
}

fn sender(role: Option<&str>) -> MessageSender {
    MessageSender {
        session_id: "hub".into(),
        role: role.map(Arc::from),
        principal: Some("alice".into()),
    }
}

#[tokio::test(start_paused = true)]
async fn offer_excludes_servers_of_peers() {
    let host = host().await;
    let peer = FakePeer::new("hub", &[("build-b", "x"), ("build-a", "x")]);
    let offered = server_offer(&host, &["build-*"]);
    let federation = Federation {
        host: host.clone(),
        side: PeerRole::Hub,
        retention: None,
        own_offer: Some(offered.clone()),
    };
    let following = federation.follow_peer(peer.remote());
    assert!(wait_for_state(&host, "build-b", "ready").await);
    // The own offer echoed by the hub is no conflict.
    assert_eq!(*following.watch_refusals().borrow(), []);
    let said = offered.write_offer();
    let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
    assert_eq!(said.as_array().unwrap().len(), 1, "{said}");
    assert_eq!(said[0]["name"], "build-a");
    assert_eq!(said[0]["tools"][0]["name"], "do");
    for (server, is_served) in [("build-a", true), ("build-b", false), ("private", false)] {
        assert_eq!(offered.is_server_offered(server), is_served, "{server}");
    }
    assert_eq!(&*server_offer(&host, &[]).write_offer(), b"[]");
}

#[tokio::test(start_paused = true)]
async fn only_locally_defined_roles_count() {
    let host = host().await;
    let offered = server_offer(&host, &["*"]);
    let all = offered.map_sender(&sender(None)).unwrap();
    assert_eq!((&*all.name, &all.role), ("hub:alice", &Role::OwnersAgent));

    let rules = RoleRules {
        allow: vec![FeaturePattern::parse("build-a.*").unwrap()],
        ..RoleRules::default()
    };
    let policy = Policy::new(DefaultAction::Allow)
        .with_role("builder", rules.clone())
        .with_role("hub-owner", rules)
        .with_principal("alice", "builder");
    host.set_policy(policy);
    let builder = offered.map_sender(&sender(Some("builder"))).unwrap();
    assert_eq!(builder.role, Role::Named("builder".into()));
    let owner = offered.map_sender(&sender(Some("owner"))).unwrap();
    assert_eq!(owner.role, Role::Named("hub-owner".into()));
    // Neither an undefined role, nor a name with another local meaning.
    for role in [None, Some("admin"), Some("")] {
        assert_eq!(offered.map_sender(&sender(role)), None, "{role:?}");
    }
}
