//! Large responses: sent in small pieces and counted until sent.
//!
//! hyper requests a piece when its buffer has room, so unsent bytes for a slow reader stay here and
//! count in the share of the reader's principal.

use std::sync::Arc;

use bowline_core::call::Principal;
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::shares::{ShareError, SharedResource};
use bowline_host::accounts::{PrincipalAccounts, ResourceShare};
use bowline_wire::object;
use bytes::Bytes;

use super::call_errors;
use super::event_stream::StreamGuard;
use super::response_body::{EdgeBody, EdgeResponse};

/// Responses above this size are counted.
pub const LARGE_BYTES_MIN: usize = 64 * 1024;

/// Size of a piece.
const PIECE_BYTES: usize = 16 * 1024;

/// Account charged for large responses.
#[derive(Clone, Debug)]
pub struct ResponseAccount {
    /// Resource accounts per principal.
    pub accounts: PrincipalAccounts,
    /// Principal of the reader.
    pub principal: Arc<Principal>,
}

impl ResponseAccount {
    /// Charges a response until its last piece is sent.
    ///
    /// # Errors
    /// The principal's limit of unread bytes is exhausted.
    pub fn charge_bytes(&self, bytes: Bytes) -> Result<LargeBody, ShareError> {
        let amount = bytes.len() as u64;
        let share =
            self.accounts
                .take_share(&self.principal, SharedResource::ResponseBytes, amount)?;
        Ok(LargeBody {
            bytes,
            _share: share,
            _guard: None,
        })
    }
}

/// A response sent in pieces.
#[derive(Debug)]
pub struct LargeBody {
    /// Unsent bytes.
    bytes: Bytes,
    _share: ResourceShare,
    /// Dropped with the body.
    _guard: Option<Box<dyn StreamGuard>>,
}

impl LargeBody {
    /// Attaches a guard dropped with the body.
    pub fn attach_guard(&mut self, guard: Box<dyn StreamGuard>) {
        self._guard = Some(guard);
    }

    /// Returns the number of bytes left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next piece as a copy, so that a piece queued for writing does not keep the whole
    /// response in memory.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        if self.bytes.is_empty() {
            return None;
        }
        let piece = self.bytes.split_to(self.bytes.len().min(PIECE_BYTES));
        Some(Bytes::copy_from_slice(&piece))
    }
}

/// Returns whether a response is large or may become large.
pub fn may_be_large(response: &EdgeResponse) -> bool {
    match response.body() {
        EdgeBody::Whole(bytes) => (bytes.as_ref()).is_some_and(|one| one.len() > LARGE_BYTES_MIN),
        EdgeBody::Events(_) => true,
        EdgeBody::Large(_) | EdgeBody::Watcher(_) | EdgeBody::Api(_) => false,
    }
}

/// Charges a large response to the reader's share, or replaces the response by an error.
pub fn charge_response(mut response: EdgeResponse, account: ResponseAccount) -> EdgeResponse {
    match response.body_mut() {
        EdgeBody::Whole(Some(bytes)) if bytes.len() > LARGE_BYTES_MIN => {
            let bytes = bytes.clone();
            *response.body_mut() = match account.charge_bytes(bytes.clone()) {
                Ok(large) => EdgeBody::Large(Box::new(large)),
                Err(cause) => EdgeBody::Whole(Some(undelivered_error(&bytes, cause))),
            };
        }
        EdgeBody::Events(events) => events.charge_to(account),
        _ => {}
    }
    response
}

/// Writes the error that replaces an undeliverable message.
pub fn undelivered_error(message: &[u8], cause: ShareError) -> Bytes {
    let id = object::field(message, "id").map_or(&b"null"[..], |at| at.slice(message));
    let error = CallError::ShareExceeded {
        cause,
        execution: ExecutionStatus::Completed,
    };
    call_errors::error_response(id, &error)
}

#[cfg(test)]
mod tests {
    use bowline_core::call::Role;
    use bowline_core::shares::{ShareLimit, ShareLimits};

    use super::super::response_body;
    use super::*;

    fn test_account() -> ResponseAccount {
        let limit = ShareLimit::new(400_000, 200_000);
        let limits = ShareLimits::default().with_limit(SharedResource::ResponseBytes, limit);
        ResponseAccount {
            accounts: PrincipalAccounts::new(limits),
            principal: Arc::new(Principal::new("ann", Role::None)),
        }
    }

    #[test]
    fn large_response_counts_until_handed_out() {
        let payer = test_account();
        let text: Vec<u8> = (0..150_000_u32).map(|nth| nth as u8).collect();
        let mut large = payer.charge_bytes(text.clone().into()).unwrap();
        assert!(payer.charge_bytes(text.clone().into()).is_err());
        let mut read = Vec::new();
        while let Some(piece) = large.next_piece() {
            assert!(piece.len() <= PIECE_BYTES);
            read.extend_from_slice(&piece);
        }
        assert!(read == text);
        drop(large);
        assert_eq!(payer.accounts.usage()[4].used, 0);
    }

    #[test]
    fn undelivered_response_says_the_call_ran() {
        let payer = test_account();
        let filler = "x".repeat(150_000);
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":\"{filler}\"}}");
        let answer =
            |text: &str| response_body::json_response(http::StatusCode::OK, text.to_owned());
        let first = charge_response(answer(&text), payer.clone());
        assert!(matches!(first.body(), EdgeBody::Large(large) if large.len() == text.len()));
        let second = charge_response(answer(&text), payer.clone());
        let EdgeBody::Whole(Some(told)) = second.body() else {
            panic!("it is refused")
        };
        let told: serde_json::Value = serde_json::from_slice(told).unwrap();
        assert_eq!(told["id"], "a");
        assert_eq!(told["error"]["data"]["code"], "share_exceeded");
        assert_eq!(told["error"]["data"]["execution"], "completed");
        let small = charge_response(answer("{}"), payer);
        assert!(matches!(small.body(), EdgeBody::Whole(Some(_))));
    }
}
