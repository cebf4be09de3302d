//! Notifications about the outcome of queued writes.

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::client_handle::SessionKey;
use bowline_testkit::{ServerScript, ToolBehaviour, wait_for_state};
use serde_json::{Value, json};

use crate::rig::{OutboxRig, healthy_server, server_doing};

#[tokio::test(start_paused = true)]
async fn delivery_notifies_session_and_is_readable() {
    let rig = OutboxRig::new(
        ServerScript::always(server_doing(ToolBehaviour::Exit))
            .then(server_doing(ToolBehaviour::Exit))
            .then(healthy_server()),
    )
    .await;
    let said = rig.queue_write(r#"{"n":1}"#).await;
    assert!(wait_for_state(&rig.host, "s", "ready").await);
    let heard = rig.ears.wait_for_notifications(1).await;
    assert_eq!((heard.len(), heard[0].0), (1, 7));
    let heard: Value = serde_json::from_str(&heard[0].1).unwrap();
    assert_eq!(heard["method"], "notifications/message");
    let params = &heard["params"];
    assert_eq!(
        (&params["level"], &params["logger"]),
        (&json!("info"), &json!("bowline.outbox"))
    );
    let data = &params["data"];
    assert_eq!(
        (&data["state"], &data["id"]),
        (&json!("delivered"), &said["id"])
    );
    assert_eq!(data["idempotencyKey"], said["idempotencyKey"]);
    assert_eq!(data["result"]["content"][0]["text"], "s#3");

    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    let outbox = rig.host.outbox();
    let read = |who: &str, role| {
        let (principal, outbox, uri) = (Principal::new(who, role), outbox.clone(), uri.clone());
        async move {
            outbox
                .read_uri(&principal, &EndpointScope::All, &uri)
                .await
                .unwrap()
        }
    };
    let own = read("owner", Role::OwnersAgent).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&own).unwrap(), *data);
    assert_eq!(read("somebody", Role::OwnersAgent).await, None, "not his");
    assert_eq!(
        read("owner", Role::None).await,
        None,
        "no right to its tool"
    );
    assert!(read("anybody", Role::Owner).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn subscriber_is_notified_of_outcome() {
    let rig = OutboxRig::new(
        ServerScript::always(server_doing(ToolBehaviour::Exit))
            .then(server_doing(ToolBehaviour::Exit))
            .then(healthy_server()),
    )
    .await;
    let said = rig.queue_write(r#"{"n":1}"#).await;
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    let outbox = rig.host.outbox();
    let owner = Principal::new("owner", Role::OwnersAgent);
    let subscribed = |who| outbox.subscribe(who, &EndpointScope::All, SessionKey(9), &uri);
    let stranger = Principal::new("stranger", Role::None);
    assert_eq!(subscribed(&stranger).await, Ok(false));
    assert_eq!(subscribed(&owner).await, Ok(true));
    let heard = rig.ears.wait_for_notifications(2).await;
    let updated = heard.iter().find(|(session, _)| *session == 9).unwrap();
    let updated: Value = serde_json::from_str(&updated.1).unwrap();
    assert_eq!(updated["method"], "notifications/resources/updated");
    assert_eq!(updated["params"]["uri"], uri.as_str());
}
