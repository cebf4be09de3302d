//! A session outlives the connection, for a while.

use std::time::Duration;

use bowline_executor::{ExecutorOffer, ServiceError};
use bowline_link::websocket::DisconnectReason;
use bowline_testkit::{RawUpstream, wait_bounded, wait_closed, write_bytes};

use super::service_rig::*;

#[tokio::test]
async fn session_resumes_only_within_retention() {
    let mut offer = ExecutorOffer::new("office");
    let (patient, patient_tasks) = new_service(offer.clone());
    let (gateway, first, opened) =
        ScriptedGateway::open(&patient, &patient_tasks, &offer, "one").await;
    assert!(!opened.is_resumed);
    wait_bounded(gateway.disconnect()).await.unwrap();
    let (gateway, second, opened) =
        ScriptedGateway::open(&patient, &patient_tasks, &offer, "one").await;
    assert!(opened.is_resumed);
    assert_eq!(first.instance, second.instance);
    drop(gateway);

    offer.limits.session_retention = Duration::from_millis(20);
    let (hasty, hasty_tasks) = new_service(offer.clone());
    let (gateway, third, _) = ScriptedGateway::open(&hasty, &hasty_tasks, &offer, "one").await;
    assert_ne!(third.instance, first.instance);
    wait_bounded(gateway.disconnect()).await.unwrap();
    // Only the session retention timer is left.
    wait_bounded(hasty_tasks.wait_finished()).await;
    let (_gateway, _, opened) = ScriptedGateway::open(&hasty, &hasty_tasks, &offer, "one").await;
    assert!(!opened.is_resumed);
}

#[tokio::test]
async fn newer_connection_fences_the_older() {
    let upstream = RawUpstream::start().await;
    let offer = offer_for(&upstream);
    let (servant, tasks) = new_service(offer.clone());
    for (session, resumed) in [("one", true), ("two", false)] {
        let (mut older, ..) = ScriptedGateway::open(&servant, &tasks, &offer, "one").await;
        older.send_request(1, get(&upstream.url)).await;
        let (mut stream, _) = upstream.accept_request().await;
        let (mut newer, _, opened) = ScriptedGateway::open(&servant, &tasks, &offer, session).await;
        assert_eq!(opened.is_resumed, resumed, "{session}");
        // Requests of the older connection stop: the response has no reader.
        wait_closed(&mut stream).await;
        let DisconnectReason::Closed { code, .. } = older.wait_ended().await else {
            panic!("it was not told");
        };
        assert_eq!(code, 4001);
        let ended = wait_bounded(older.attending).await.unwrap();
        assert_eq!(ended, ServiceError::Fenced);
        newer.send_request(2, get(&upstream.url)).await;
        let (mut stream, _) = upstream.accept_request().await;
        write_bytes(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
        assert_eq!(newer.status(2).await, 204);
    }
}
