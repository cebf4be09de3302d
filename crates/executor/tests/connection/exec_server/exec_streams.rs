//! Streams of an exec-server: names, order, and unread data.

use super::*;

#[tokio::test]
async fn whole_response_arrives_with_body() {
    let (client, mut peer) = connect_pair().await;
    let scripting = async {
        let asked = peer.receive_request().await;
        assert_eq!(asked.params["streamResponse"], false);
        let head = json!({"status": 201, "headers": [], "bodyBase64": STANDARD.encode("whole")});
        peer.write_message(&json!({"id": asked.id, "result": head}))
            .await;
    };
    let to = test_endpoint();
    let (response, ()) = tokio::join!(
        client.fetch_whole(executor_request(&to), send_options(), 1_024),
        scripting
    );
    let mut response = response.unwrap();
    assert_eq!(response.status, 201);
    assert_eq!(
        response.body.read_whole(1_024).await.unwrap(),
        &b"whole"[..]
    );
    assert_eq!(client.traffic().opened, 0);
}

#[tokio::test]
async fn streams_are_numbered_and_ordered() {
    let (client, mut peer) = connect_pair().await;
    let (mut body, name) = open_stream(&client, &mut peer).await;
    assert_eq!(name, "http-1");
    peer.send_piece(&name, 1, b"one ").await;
    peer.send_piece(&name, 2, b"two ").await;
    peer.send_delta(&name, 3, b"three", true, None).await;
    let (pieces, error) = read_chunks(&mut body).await;
    assert_eq!((pieces.concat(), error), (b"one two three".to_vec(), None));
    assert_stream_works(&client, &mut peer, "http-2").await;
    assert_eq!(client.traffic().streams, 0);
}

#[tokio::test]
async fn unread_early_end_is_harmless() {
    let (client, mut peer) = connect_pair().await;
    let scripting = async {
        let asked = peer.receive_request().await;
        assert_eq!(asked.stream_name(), "http-1");
        peer.send_delta("http-1", 1, b"early", true, None).await;
        peer.send_head(&asked).await;
    };
    let (response, ()) = tokio::join!(send_streamed(&client), scripting);
    drop(response.unwrap().body);
    assert_stream_works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn pieces_before_head_are_kept() {
    let (client, mut peer) = connect_pair().await;
    let scripting = async {
        let asked = peer.receive_request().await;
        peer.send_piece("http-1", 1, b"early ").await;
        peer.send_head(&asked).await;
        peer.send_delta("http-1", 2, b"late", true, None).await;
    };
    let (response, ()) = tokio::join!(send_streamed(&client), scripting);
    let body = wait_bounded(response.unwrap().body.read_whole(1_024))
        .await
        .unwrap();
    assert_eq!(body, &b"early late"[..]);
}

#[tokio::test]
async fn dropping_before_head_discards_stream() {
    let (client, mut peer) = connect_pair().await;
    let asked = tokio::select! {
        asked = peer.receive_request() => asked,
        response = send_streamed(&client) => panic!("{response:?}"),
    };
    assert_eq!(client.traffic().streams, 0);
    peer.send_piece(asked.stream_name(), 1, b"late").await;
    peer.send_head(&asked).await;
    peer.send_end(asked.stream_name(), 2).await;
    assert_stream_works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn dropped_body_does_not_leak_data() {
    let (client, mut peer) = connect_pair().await;
    let (body, name) = open_stream(&client, &mut peer).await;
    peer.send_piece(&name, 1, b"read by nobody").await;
    drop(body);
    assert_eq!(client.traffic().streams, 0);
    peer.send_piece(&name, 2, b"late").await;
    peer.send_end(&name, 3).await;
    assert_stream_works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn disconnect_is_reported_after_any_data() {
    for count in [0, 1, 3] {
        let (client, mut peer) = connect_pair().await;
        let (mut body, name) = open_stream(&client, &mut peer).await;
        for seq in 1..=count {
            peer.send_piece(&name, seq, b"x").await;
        }
        drop(peer);
        let (pieces, error) = read_chunks(&mut body).await;
        assert_eq!(pieces.len() as u64, count);
        let Some(HttpError::Disconnected(reason)) = error else {
            panic!("{error:?}");
        };
        assert!(reason.contains("http-1"), "{reason}");
        let refused = send_streamed(&client).await.unwrap_err();
        assert!(matches!(refused, HttpError::Unreachable(_)), "{refused:?}");
    }
}

#[tokio::test]
async fn disconnect_fails_pending_head() {
    let (client, mut peer) = connect_pair().await;
    let scripting = async {
        peer.receive_request().await;
        drop(peer);
    };
    let (response, ()) = tokio::join!(wait_bounded(send_streamed(&client)), scripting);
    assert!(
        matches!(response, Err(HttpError::Disconnected(_))),
        "{response:?}"
    );
}

#[tokio::test]
async fn out_of_order_pieces_break_one_stream() {
    for wrong in [1, 4] {
        let (client, mut peer) = connect_pair().await;
        let (mut body, name) = open_stream(&client, &mut peer).await;
        peer.send_piece(&name, 1, b"a").await;
        peer.send_piece(&name, 2, b"b").await;
        peer.send_piece(&name, wrong, b"c").await;
        peer.send_end(&name, 4).await;
        let (pieces, error) = read_chunks(&mut body).await;
        assert_eq!(pieces.concat(), b"ab");
        let Some(HttpError::Lost(reason)) = error else {
            panic!("{error:?}");
        };
        let want = format!("piece {wrong} where 3 is next");
        assert!(reason.contains("http-1") && reason.contains(&want));
        assert_stream_works(&client, &mut peer, "http-2").await;
    }
}

#[tokio::test]
async fn stream_error_follows_received_pieces() {
    let (client, mut peer) = connect_pair().await;
    let (mut body, name) = open_stream(&client, &mut peer).await;
    peer.send_piece(&name, 1, b"a").await;
    peer.send_delta(&name, 2, b"b", true, Some("upstream went away"))
        .await;
    let (pieces, error) = read_chunks(&mut body).await;
    assert_eq!(pieces.concat(), b"ab");
    let Some(HttpError::Lost(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("upstream went away"));
    assert_stream_works(&client, &mut peer, "http-2").await;
}

#[tokio::test]
async fn pieces_for_unknown_streams_are_ignored() {
    let (client, mut peer) = connect_pair().await;
    for name in ["http-1", "http-99", "http-01", "http-+1", "other", ""] {
        peer.send_delta(name, 1, b"stray", true, None).await;
    }
    peer.settle().await;
    assert_stream_works(&client, &mut peer, "http-1").await;
}
