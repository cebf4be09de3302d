//! Streams: their names, their order, and what becomes of those that nobody reads.

use super::*;

#[tokio::test]
async fn a_whole_answer_is_asked_for_as_one_and_comes_with_its_body() {
    let (client, mut peer) = connected().await;
    let scripting = async {
        let asked = peer.asked().await;
        assert_eq!(asked.params["streamResponse"], false);
        let head = json!({"status": 201, "headers": [], "bodyBase64": STANDARD.encode("whole")});
        peer.write(&json!({"id": asked.id, "result": head})).await;
    };
    let to = there();
    let (response, ()) = tokio::join!(client.fetch(errand(&to), wait(), 1_024), scripting);
    let mut response = response.unwrap();
    assert_eq!(response.status, 201);
    assert_eq!(response.body.whole(1_024).await.unwrap(), &b"whole"[..]);
    assert_eq!(client.carried().opened, 0);
}

#[tokio::test]
async fn streams_are_numbered_and_their_pieces_come_in_order() {
    let (client, mut peer) = connected().await;
    let (mut body, name) = opened(&client, &mut peer).await;
    assert_eq!(name, "http-1");
    peer.piece(&name, 1, b"one ").await;
    peer.piece(&name, 2, b"two ").await;
    peer.delta(&name, 3, b"three", true, None).await;
    let (pieces, error) = read(&mut body).await;
    assert_eq!((pieces.concat(), error), (b"one two three".to_vec(), None));
    works(&client, &mut peer, "http-2").await;
    assert_eq!(client.carried().streams, 0);
}

#[tokio::test]
async fn an_end_that_comes_before_the_head_and_is_not_read_hurts_nobody() {
    let (client, mut peer) = connected().await;
    let scripting = async {
        let asked = peer.asked().await;
        assert_eq!(asked.name(), "http-1");
        peer.delta("http-1", 1, b"early", true, None).await;
        peer.head(&asked).await;
    };
    let (response, ()) = tokio::join!(carry(&client), scripting);
    drop(response.unwrap().body);
    works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn pieces_that_come_before_the_head_are_kept_for_it() {
    let (client, mut peer) = connected().await;
    let scripting = async {
        let asked = peer.asked().await;
        peer.piece("http-1", 1, b"early ").await;
        peer.head(&asked).await;
        peer.delta("http-1", 2, b"late", true, None).await;
    };
    let (response, ()) = tokio::join!(carry(&client), scripting);
    let body = in_time(response.unwrap().body.whole(1_024)).await.unwrap();
    assert_eq!(body, &b"early late"[..]);
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_head_gets_nothing_and_neither_does_the_next() {
    let (client, mut peer) = connected().await;
    let asked = tokio::select! {
        asked = peer.asked() => asked,
        response = carry(&client) => panic!("{response:?}"),
    };
    assert_eq!(client.carried().streams, 0);
    peer.piece(asked.name(), 1, b"late").await;
    peer.head(&asked).await;
    peer.end(asked.name(), 2).await;
    works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn a_body_that_is_dropped_leaves_nothing_for_the_next() {
    let (client, mut peer) = connected().await;
    let (body, name) = opened(&client, &mut peer).await;
    peer.piece(&name, 1, b"read by nobody").await;
    drop(body);
    assert_eq!(client.carried().streams, 0);
    peer.piece(&name, 2, b"late").await;
    peer.end(&name, 3).await;
    works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn a_lost_connection_is_told_as_one_whatever_had_come() {
    for count in [0, 1, 3] {
        let (client, mut peer) = connected().await;
        let (mut body, name) = opened(&client, &mut peer).await;
        for seq in 1..=count {
            peer.piece(&name, seq, b"x").await;
        }
        drop(peer);
        let (pieces, error) = read(&mut body).await;
        assert_eq!(pieces.len() as u64, count);
        let Some(HttpError::Disconnected(reason)) = error else {
            panic!("{error:?}");
        };
        assert!(reason.contains("http-1"), "{reason}");
        let refused = carry(&client).await.unwrap_err();
        assert!(matches!(refused, HttpError::Unreachable(_)), "{refused:?}");
    }
}

#[tokio::test]
async fn a_caller_that_waits_for_a_head_is_told_of_a_lost_connection() {
    let (client, mut peer) = connected().await;
    let scripting = async {
        peer.asked().await;
        drop(peer);
    };
    let (response, ()) = tokio::join!(in_time(carry(&client)), scripting);
    assert!(
        matches!(response, Err(HttpError::Disconnected(_))),
        "{response:?}"
    );
}

#[tokio::test]
async fn pieces_out_of_order_break_their_stream_only() {
    for wrong in [1, 4] {
        let (client, mut peer) = connected().await;
        let (mut body, name) = opened(&client, &mut peer).await;
        peer.piece(&name, 1, b"a").await;
        peer.piece(&name, 2, b"b").await;
        peer.piece(&name, wrong, b"c").await;
        peer.end(&name, 4).await;
        let (pieces, error) = read(&mut body).await;
        assert_eq!(pieces.concat(), b"ab");
        let Some(HttpError::Lost(reason)) = error else {
            panic!("{error:?}");
        };
        let want = format!("piece {wrong} where 3 is next");
        assert!(reason.contains("http-1") && reason.contains(&want));
        works(&client, &mut peer, "http-2").await;
    }
}

#[tokio::test]
async fn an_error_ends_a_stream_behind_what_had_come() {
    let (client, mut peer) = connected().await;
    let (mut body, name) = opened(&client, &mut peer).await;
    peer.piece(&name, 1, b"a").await;
    peer.delta(&name, 2, b"b", true, Some("upstream went away"))
        .await;
    let (pieces, error) = read(&mut body).await;
    assert_eq!(pieces.concat(), b"ab");
    let Some(HttpError::Lost(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("upstream went away"));
    works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn pieces_for_streams_that_are_not_there_are_nobodys() {
    let (client, mut peer) = connected().await;
    for name in ["http-1", "http-99", "http-01", "http-+1", "other", ""] {
        peer.delta(name, 1, b"stray", true, None).await;
    }
    peer.settle().await;
    works(&client, &mut peer, "http-1").await;
}
