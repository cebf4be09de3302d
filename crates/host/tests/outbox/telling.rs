//! The agent is told what became of a write that it was promised.

use bowline_core::call::{Principal, Role, Scope};
use bowline_core::caller::SessionKey;
use bowline_sim::{Act, Script, reaches};
use serde_json::{Value, json};

use crate::rig::{Rig, doing, up};

#[tokio::test(start_paused = true)]
async fn the_session_that_made_a_write_is_told_of_its_delivery_and_its_principal_can_read_it() {
    let rig = Rig::new(
        Script::always(doing(Act::Dies))
            .then(doing(Act::Dies))
            .then(up()),
    )
    .await;
    let said = rig.queue(r#"{"n":1}"#).await;
    assert!(reaches(&rig.host, "s", "ready").await);
    let heard = rig.ears.heard(1).await;
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
        async move { outbox.read(&principal, &Scope::All, &uri).await.unwrap() }
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
async fn who_subscribed_to_a_write_hears_that_it_is_over() {
    let rig = Rig::new(
        Script::always(doing(Act::Dies))
            .then(doing(Act::Dies))
            .then(up()),
    )
    .await;
    let said = rig.queue(r#"{"n":1}"#).await;
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    let outbox = rig.host.outbox();
    let owner = Principal::new("owner", Role::OwnersAgent);
    let subscribed = |who| outbox.subscribe((who, &Scope::All), SessionKey(9), &uri);
    let stranger = Principal::new("stranger", Role::None);
    assert_eq!(subscribed(&stranger).await, Ok(false));
    assert_eq!(subscribed(&owner).await, Ok(true));
    let heard = rig.ears.heard(2).await;
    let updated = heard.iter().find(|(session, _)| *session == 9).unwrap();
    let updated: Value = serde_json::from_str(&updated.1).unwrap();
    assert_eq!(updated["method"], "notifications/resources/updated");
    assert_eq!(updated["params"]["uri"], uri.as_str());
}
