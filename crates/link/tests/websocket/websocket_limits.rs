//! Bounded queues: a slow reader slows down the sender, without loss.

use futures_util::FutureExt;

use super::*;

const MESSAGES: usize = 3_000;

fn numbered_message(number: usize) -> Bytes {
    format!("{number:08}{}", "x".repeat(4_000)).into()
}

#[tokio::test]
async fn slow_reader_slows_sender_without_loss() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits {
        queue_max: 8,
        queue_bytes_max: 20_000,
        ..WebSocketLimits::default()
    };
    for client_sends in [true, false] {
        let ((client, from_server), (server, from_client)) =
            websocket_pair(limits, limits, &spawner).await;
        let (outgoing, mut incoming, _others) = match client_sends {
            true => (client, from_client, (server, from_server)),
            false => (server, from_server, (client, from_client)),
        };
        let mut sent = 0;
        // Beyond the capacity of both sockets.
        let mut sending = Box::pin(async {
            while sent < MESSAGES {
                outgoing.send(numbered_message(sent)).await.unwrap();
                sent += 1;
            }
        });
        let held = tokio::time::timeout(Duration::from_millis(500), &mut sending).await;
        let reading = async {
            for number in 0..MESSAGES {
                assert_eq!(incoming.next().await.unwrap(), numbered_message(number));
            }
        };
        let both = async { tokio::join!(sending, reading) };
        wait_bounded(both).await;
        assert!(held.is_err(), "nobody read, and all was taken");
    }
}

#[tokio::test]
async fn full_queue_returns_message_until_room() {
    let spawner = JoiningSpawner::default();
    for limits in [
        WebSocketLimits {
            queue_max: 4,
            ..WebSocketLimits::default()
        },
        WebSocketLimits {
            queue_bytes_max: 10_000,
            ..WebSocketLimits::default()
        },
    ] {
        let ((client, _from_server), (_server, mut from_client)) =
            websocket_pair(limits, limits, &spawner).await;
        // The writer task does not run in between.
        let mut queued = 0;
        while client.try_send(numbered_message(queued)).is_ok() {
            queued += 1;
            assert!(queued < 100, "no bound");
        }
        assert!(queued > 1);
        assert_eq!(
            client.try_send(numbered_message(7)),
            Err(numbered_message(7))
        );
        assert!(client.send(numbered_message(7)).now_or_never().is_none());
        for number in 0..queued {
            assert_eq!(from_client.next().await.unwrap(), numbered_message(number));
        }
        let sending = wait_bounded(client.send(numbered_message(8)));
        sending.await.unwrap();
        assert_eq!(from_client.next().await.unwrap(), numbered_message(8));
    }
}

#[tokio::test]
async fn oversized_message_uses_whole_queue() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits {
        queue_bytes_max: 100,
        ..WebSocketLimits::default()
    };
    let ((client, _from_server), (_server, mut from_client)) =
        websocket_pair(limits, limits, &spawner).await;
    for number in 0..3 {
        let sending = wait_bounded(client.send(numbered_message(number)));
        sending.await.unwrap();
    }
    for number in 0..3 {
        assert_eq!(from_client.next().await.unwrap(), numbered_message(number));
    }
}

#[tokio::test]
async fn concurrent_writers_do_not_deadlock() {
    let spawner = JoiningSpawner::default();
    let limits = WebSocketLimits {
        queue_max: 4,
        ..WebSocketLimits::default()
    };
    let ((client, mut from_server), (server, mut from_client)) =
        websocket_pair(limits, limits, &spawner).await;
    let send = async |outgoing: &WebSocketSender| {
        for number in 0..MESSAGES {
            outgoing.send(numbered_message(number)).await.unwrap();
        }
    };
    let read = async |incoming: &mut WebSocketReceiver| {
        for number in 0..MESSAGES {
            assert_eq!(incoming.next().await.unwrap(), numbered_message(number));
        }
    };
    let all = async {
        tokio::join!(
            send(&client),
            send(&server),
            read(&mut from_server),
            read(&mut from_client)
        )
    };
    wait_bounded(all).await;
}
