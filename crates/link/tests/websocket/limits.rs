//! Queues are bounded: who reads slowly slows who sends, and nothing is dropped.

use futures_util::FutureExt;

use super::*;

const MESSAGES: usize = 3_000;

fn numbered(number: usize) -> Bytes {
    format!("{number:08}{}", "x".repeat(4_000)).into()
}

#[tokio::test]
async fn a_slow_reader_slows_the_sender_and_nothing_is_dropped() {
    let spawner = Tokio::default();
    let limits = SocketLimits {
        queue_max: 8,
        queue_bytes_max: 20_000,
        ..SocketLimits::default()
    };
    for client_sends in [true, false] {
        let ((client, from_server), (server, from_client)) = pair(limits, limits, &spawner).await;
        let (outgoing, mut incoming, _others) = match client_sends {
            true => (client, from_client, (server, from_server)),
            false => (server, from_server, (client, from_client)),
        };
        let mut sent = 0;
        // More than this the sockets of both sides cannot hold.
        let mut sending = Box::pin(async {
            while sent < MESSAGES {
                outgoing.send(numbered(sent)).await.unwrap();
                sent += 1;
            }
        });
        let held = tokio::time::timeout(Duration::from_millis(500), &mut sending).await;
        let reading = async {
            for number in 0..MESSAGES {
                assert_eq!(incoming.next().await.unwrap(), numbered(number));
            }
        };
        let both = async { tokio::join!(sending, reading) };
        tokio::time::timeout(LONG, both).await.unwrap();
        assert!(held.is_err(), "nobody read, and all was taken");
    }
}

#[tokio::test]
async fn what_finds_no_room_is_given_back_and_room_comes_back() {
    let spawner = Tokio::default();
    for limits in [
        SocketLimits {
            queue_max: 4,
            ..SocketLimits::default()
        },
        SocketLimits {
            queue_bytes_max: 10_000,
            ..SocketLimits::default()
        },
    ] {
        let ((client, _from_server), (_server, mut from_client)) =
            pair(limits, limits, &spawner).await;
        // The task does not run in between, and so takes nothing away.
        let mut queued = 0;
        while client.try_send(numbered(queued)).is_ok() {
            queued += 1;
            assert!(queued < 100, "no bound");
        }
        assert!(queued > 1);
        assert_eq!(client.try_send(numbered(7)), Err(numbered(7)));
        assert!(client.send(numbered(7)).now_or_never().is_none());
        for number in 0..queued {
            assert_eq!(from_client.next().await.unwrap(), numbered(number));
        }
        let sending = tokio::time::timeout(LONG, client.send(numbered(8)));
        sending.await.unwrap().unwrap();
        assert_eq!(from_client.next().await.unwrap(), numbered(8));
    }
}

#[tokio::test]
async fn a_message_larger_than_the_whole_queue_goes_alone() {
    let spawner = Tokio::default();
    let limits = SocketLimits {
        queue_bytes_max: 100,
        ..SocketLimits::default()
    };
    let ((client, _from_server), (_server, mut from_client)) = pair(limits, limits, &spawner).await;
    for number in 0..3 {
        let sending = tokio::time::timeout(LONG, client.send(numbered(number)));
        sending.await.unwrap().unwrap();
    }
    for number in 0..3 {
        assert_eq!(from_client.next().await.unwrap(), numbered(number));
    }
}

#[tokio::test]
async fn two_that_both_write_without_end_do_not_block_each_other() {
    let spawner = Tokio::default();
    let limits = SocketLimits {
        queue_max: 4,
        ..SocketLimits::default()
    };
    let ((client, mut from_server), (server, mut from_client)) =
        pair(limits, limits, &spawner).await;
    let send = async |outgoing: &Outgoing| {
        for number in 0..MESSAGES {
            outgoing.send(numbered(number)).await.unwrap();
        }
    };
    let read = async |incoming: &mut Incoming| {
        for number in 0..MESSAGES {
            assert_eq!(incoming.next().await.unwrap(), numbered(number));
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
    tokio::time::timeout(LONG, all).await.unwrap();
}
