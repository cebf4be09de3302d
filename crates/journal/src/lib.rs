//! What is remembered: lanes, mailboxes, results by idempotency key and the audit chain.
//!
//! The room is empty so far: nothing of the first milestone has to survive a restart except what
//! the state directory holds. See `docs/ARCHITECTURE.md`.
