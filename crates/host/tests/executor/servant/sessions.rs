//! A session outlives its connection, for a while.

use std::time::Duration;

use bowline_host::executor::{Offer, ServeError};
use bowline_link::websocket::Ended;

use super::rig::*;

#[tokio::test]
async fn a_session_is_gone_on_with_within_its_time_and_not_after_it() {
    let mut offer = Offer::new("office");
    let patient = servant(offer.clone());
    let (gateway, first, opened) = Gateway::open(&patient, &offer, "one").await;
    assert!(!opened.resumed);
    soon(gateway.leave()).await.unwrap();
    let (gateway, second, opened) = Gateway::open(&patient, &offer, "one").await;
    assert!(opened.resumed);
    assert_eq!(first.instance, second.instance);
    drop(gateway);

    offer.limits.keep = Duration::from_millis(20);
    let hasty = servant(offer.clone());
    let (gateway, third, _) = Gateway::open(&hasty, &offer, "one").await;
    assert_ne!(third.instance, first.instance);
    soon(gateway.leave()).await.unwrap();
    // What waits for the session to come back is the last that lives.
    soon(hasty.1.finished()).await;
    let (_gateway, _, opened) = Gateway::open(&hasty, &offer, "one").await;
    assert!(!opened.resumed);
}

#[tokio::test]
async fn the_newer_of_two_connections_is_served_and_the_older_is_told() {
    let upstream = Upstream::new().await;
    let offer = upstream.offer();
    let servant = servant(offer.clone());
    for (session, resumed) in [("one", true), ("two", false)] {
        let (mut older, ..) = Gateway::open(&servant, &offer, "one").await;
        older.ask(1, get(&upstream.url)).await;
        let (mut stream, _) = upstream.taken().await;
        let (mut newer, _, opened) = Gateway::open(&servant, &offer, session).await;
        assert_eq!(opened.resumed, resumed, "{session}");
        // What the older one asked for is not carried on: its answer would find nobody.
        closed(&mut stream).await;
        let Ended::Closed { code, .. } = older.ended().await else {
            panic!("it was not told");
        };
        assert_eq!(code, 4001);
        let ended = soon(older.attending).await.unwrap();
        assert_eq!(ended, ServeError::Fenced);
        newer.ask(2, get(&upstream.url)).await;
        let (mut stream, _) = upstream.taken().await;
        write(&mut stream, "HTTP/1.1 204 No\r\n\r\n").await;
        assert_eq!(newer.status(2).await, 204);
    }
}
