//! An executor that answers by itself: bodies that can be told apart, within their credit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_wire::executor::{Answered, Frame, data};
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::script::{Script, start};

/// Bytes in one frame.
const PIECE_BYTES: u64 = 16 * 1024;

/// What the credits of streams are kept in.
type Credits = Arc<Mutex<HashMap<u64, Arc<Semaphore>>>>;

/// Returns the byte that a body has at a place.
pub(crate) fn byte(seed: u64, at: u64) -> u8 {
    let mixed = (at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x0100_0193);
    mixed.to_le_bytes()[1]
}

/// Whether a piece is what the body has there.
pub(crate) fn fits(seed: u64, from: u64, piece: &[u8]) -> bool {
    (from..)
        .zip(piece)
        .all(|(at, have)| byte(seed, at) == *have)
}

/// Answers `/SEED/LENGTH` with a body of that length, until the connection ends.
pub(crate) async fn work(mut script: Script) {
    let credits = Credits::default();
    while let Ok(message) = script.incoming.next().await {
        match Frame::read(&message).unwrap() {
            Frame::Request { stream, asked } => {
                let credit = usize::try_from(asked.credit).unwrap();
                let credit = Arc::new(Semaphore::new(credit));
                credits.lock().unwrap().insert(stream, Arc::clone(&credit));
                let (out, credits) = (script.out.clone(), Arc::clone(&credits));
                start(async move {
                    let mut path = asked.url.rsplit('/');
                    let length = path.next().unwrap().parse().unwrap();
                    let seed = path.next().unwrap().parse().unwrap();
                    // A connection that is over takes its streams along.
                    let _ = body(&out, stream, &credit, (seed, length)).await;
                    credits.lock().unwrap().remove(&stream);
                });
            }
            Frame::Credit { stream, bytes } => {
                if let Some(credit) = credits.lock().unwrap().get(&stream) {
                    credit.add_permits(usize::try_from(bytes).unwrap());
                }
            }
            Frame::Cancel { stream } => {
                if let Some(credit) = credits.lock().unwrap().remove(&stream) {
                    credit.close();
                }
            }
            _ => {}
        }
    }
    for credit in credits.lock().unwrap().values() {
        credit.close();
    }
}

async fn body(
    out: &bowline_link::websocket::Outgoing,
    stream: u64,
    credit: &Semaphore,
    (seed, length): (u64, u64),
) -> Option<()> {
    let answered = Answered {
        status: 200,
        lines: Bytes::new(),
    };
    let answer = Frame::Answer { stream, answered };
    out.send(answer.to_bytes()).await.ok()?;
    let mut offset = 0;
    while offset < length {
        let mut count = PIECE_BYTES.min(length - offset);
        // As much as is allowed, at least one byte.
        credit.acquire().await.ok()?.forget();
        let more = u64::try_from(credit.available_permits()).unwrap();
        count = count.min(1 + more);
        let rest = u32::try_from(count - 1).unwrap();
        credit.try_acquire_many(rest).ok()?.forget();
        let piece: Vec<u8> = (offset..offset + count).map(|at| byte(seed, at)).collect();
        out.send(data(stream, offset, &piece)).await.ok()?;
        offset += count;
    }
    let end = Frame::End {
        stream,
        offset,
        trailers: Bytes::new(),
    };
    out.send(end.to_bytes()).await.ok()
}
