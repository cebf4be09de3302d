//! Large responses: handed to their connection in small pieces, and counted until they are.
//!
//! The HTTP server asks for a piece when it has room for one, so what a slow reader has not taken
//! stays here, as a part of the share of its principal.

use std::sync::Arc;

use bowline_core::call::Principal;
use bowline_core::error::{CallError, Execution};
use bowline_core::shares::{Resource, ShareError};
use bowline_host::accounts::{PrincipalAccounts, Share};
use bowline_wire::object;
use bytes::Bytes;

use super::body::{Answer, EdgeBody};
use super::errors;
use super::stream::Guard;

/// A response of more bytes is counted.
pub const LARGE_BYTES_MIN: usize = 64 * 1024;

/// Bytes that are handed out at once.
const PIECE_BYTES: usize = 16 * 1024;

/// Whose share large responses are a part of.
#[derive(Clone, Debug)]
pub struct Payer {
    /// What each principal holds.
    pub accounts: PrincipalAccounts,
    /// Who reads the responses.
    pub principal: Arc<Principal>,
}

impl Payer {
    /// Counts a response until its last piece is handed out.
    ///
    /// # Errors
    /// The principal leaves as much unread as it may.
    pub fn pay(&self, bytes: Bytes) -> Result<LargeBody, ShareError> {
        let amount = bytes.len() as u64;
        let share = self
            .accounts
            .take(&self.principal, Resource::ResponseBytes, amount)?;
        Ok(LargeBody {
            bytes,
            _share: share,
            _guard: None,
        })
    }
}

/// A response that is handed out in pieces.
#[derive(Debug)]
pub struct LargeBody {
    /// What was not handed out yet.
    bytes: Bytes,
    _share: Share,
    /// Dropped with the body.
    _guard: Option<Box<dyn Guard>>,
}

impl LargeBody {
    /// Keeps something that ends with the body.
    pub fn keep(&mut self, guard: Box<dyn Guard>) {
        self._guard = Some(guard);
    }

    /// Returns how many bytes are left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next piece. It is a copy, so that a piece which waits to be written does not
    /// keep the whole response in memory.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        if self.bytes.is_empty() {
            return None;
        }
        let piece = self.bytes.split_to(self.bytes.len().min(PIECE_BYTES));
        Some(Bytes::copy_from_slice(&piece))
    }
}

/// Whether a response is large, or may become it.
pub fn may_be(answer: &Answer) -> bool {
    match answer.body() {
        EdgeBody::Whole(bytes) => (bytes.as_ref()).is_some_and(|one| one.len() > LARGE_BYTES_MIN),
        EdgeBody::Events(_) => true,
        EdgeBody::Large(_) | EdgeBody::Watcher(_) | EdgeBody::Api(_) => false,
    }
}

/// Counts a large response in the share of its reader, or says in its place that it is lost.
pub fn charge(mut answer: Answer, payer: Payer) -> Answer {
    match answer.body_mut() {
        EdgeBody::Whole(Some(bytes)) if bytes.len() > LARGE_BYTES_MIN => {
            let bytes = bytes.clone();
            *answer.body_mut() = match payer.pay(bytes.clone()) {
                Ok(large) => EdgeBody::Large(Box::new(large)),
                Err(cause) => EdgeBody::Whole(Some(undelivered(&bytes, cause))),
            };
        }
        EdgeBody::Events(events) => events.paid_by(payer),
        _ => {}
    }
    answer
}

/// Writes what a caller is told in place of a message that it has no room for.
pub fn undelivered(message: &[u8], cause: ShareError) -> Bytes {
    let id = object::field(message, "id").map_or(&b"null"[..], |at| at.of(message));
    let error = CallError::ShareExceeded {
        cause,
        execution: Execution::Completed,
    };
    errors::answer(id, &error)
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Role;
    use bowline_core::shares::{ShareLimit, ShareLimits};

    use super::super::body;
    use super::*;

    fn payer() -> Payer {
        let limit = ShareLimit::new(400_000, 200_000);
        let limits = ShareLimits::default().with(Resource::ResponseBytes, limit);
        Payer {
            accounts: PrincipalAccounts::new(limits),
            principal: Arc::new(Principal::new("ann", Role::None)),
        }
    }

    #[test]
    fn large_response_counts_until_handed_out() {
        let payer = payer();
        let text: Vec<u8> = (0..150_000_u32).map(|nth| nth as u8).collect();
        let mut large = payer.pay(text.clone().into()).unwrap();
        assert!(payer.pay(text.clone().into()).is_err());
        let mut read = Vec::new();
        while let Some(piece) = large.next_piece() {
            assert!(piece.len() <= PIECE_BYTES);
            read.extend_from_slice(&piece);
        }
        assert!(read == text);
        drop(large);
        assert_eq!(payer.accounts.view()[4].used, 0);
    }

    #[test]
    fn undelivered_response_says_the_call_ran() {
        let payer = payer();
        let filler = "x".repeat(150_000);
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":\"{filler}\"}}");
        let answer = |text: &str| body::json(http::StatusCode::OK, text.to_owned());
        let first = charge(answer(&text), payer.clone());
        assert!(matches!(first.body(), EdgeBody::Large(large) if large.len() == text.len()));
        let second = charge(answer(&text), payer.clone());
        let EdgeBody::Whole(Some(told)) = second.body() else {
            panic!("it is refused")
        };
        let told: serde_json::Value = serde_json::from_slice(told).unwrap();
        assert_eq!(told["id"], "a");
        assert_eq!(told["error"]["data"]["code"], "share_exceeded");
        assert_eq!(told["error"]["data"]["execution"], "completed");
        let small = charge(answer("{}"), payer);
        assert!(matches!(small.body(), EdgeBody::Whole(Some(_))));
    }
}
