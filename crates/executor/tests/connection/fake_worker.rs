//! An automatic executor with distinguishable bodies, within the credit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_executor::frames::{ExecutorFrame, ResponseHead, data_frame};
use bowline_testkit::spawn_task;
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::scripted_executor::ScriptedExecutor;

/// Bytes per frame.
const PIECE_BYTES: u64 = 16 * 1024;

/// Credits by stream.
type StreamCredits = Arc<Mutex<HashMap<u64, Arc<Semaphore>>>>;

/// Returns the body byte at an offset.
pub(crate) fn body_byte(seed: u64, at: u64) -> u8 {
    let mixed = (at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x0100_0193);
    mixed.to_le_bytes()[1]
}

/// Whether a chunk matches the body at an offset.
pub(crate) fn matches_body(seed: u64, from: u64, piece: &[u8]) -> bool {
    (from..)
        .zip(piece)
        .all(|(at, have)| body_byte(seed, at) == *have)
}

/// Serves `/SEED/LENGTH` with a body of this length, until the connection ends.
pub(crate) async fn serve_bodies(mut script: ScriptedExecutor) {
    let credits = StreamCredits::default();
    while let Ok(message) = script.socket.receiver.next().await {
        match ExecutorFrame::parse(&message).unwrap() {
            ExecutorFrame::Request { stream, head } => {
                let credit = usize::try_from(head.credit).unwrap();
                let credit = Arc::new(Semaphore::new(credit));
                credits.lock().unwrap().insert(stream, Arc::clone(&credit));
                let (out, credits) = (script.socket.sender.clone(), Arc::clone(&credits));
                spawn_task(async move {
                    let mut path = head.url.rsplit('/');
                    let length = path.next().unwrap().parse().unwrap();
                    let seed = path.next().unwrap().parse().unwrap();
                    // An ended connection ends all streams.
                    let _ = send_body(&out, stream, &credit, seed, length).await;
                    credits.lock().unwrap().remove(&stream);
                });
            }
            ExecutorFrame::Credit { stream, bytes } => {
                if let Some(credit) = credits.lock().unwrap().get(&stream) {
                    credit.add_permits(usize::try_from(bytes).unwrap());
                }
            }
            ExecutorFrame::Cancel { stream } => {
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

async fn send_body(
    out: &bowline_link::websocket::WebSocketSender,
    stream: u64,
    credit: &Semaphore,
    seed: u64,
    length: u64,
) -> Option<()> {
    let head = ResponseHead {
        status: 200,
        header_lines: Bytes::new(),
    };
    let answer = ExecutorFrame::Response { stream, head };
    out.send(answer.to_bytes()).await.ok()?;
    let mut offset = 0;
    while offset < length {
        let mut count = PIECE_BYTES.min(length - offset);
        // As much as permitted, at least a single byte.
        credit.acquire().await.ok()?.forget();
        let more = u64::try_from(credit.available_permits()).unwrap();
        count = count.min(1 + more);
        let rest = u32::try_from(count - 1).unwrap();
        credit.try_acquire_many(rest).ok()?.forget();
        let piece: Vec<u8> = (offset..offset + count)
            .map(|at| body_byte(seed, at))
            .collect();
        out.send(data_frame(stream, offset, &piece)).await.ok()?;
        offset += count;
    }
    let end = ExecutorFrame::End {
        stream,
        offset,
        trailers: Bytes::new(),
    };
    out.send(end.to_bytes()).await.ok()
}
