//! Close codes of WebSockets: those of RFC 6455 and IANA in use here, and the private codes of
//! broker and executors.

/// The purpose of the connection is fulfilled.
pub const NORMAL: u16 = 1000;

/// This end is shutting down.
pub const GOING_AWAY: u16 = 1001;

/// Stands for a close frame without a code; never sent.
pub(super) const NO_CODE: u16 = 1005;

/// The other end does not read, and may connect again later.
pub const TRY_AGAIN_LATER: u16 = 1013;

/// Another connection took over the mailbox, or the name of the executor.
pub const FENCED: u16 = 4001;

/// The credential expired or was revoked.
pub const CREDENTIAL_ENDED: u16 = 4002;

/// The other end was not admitted.
pub const NOT_ADMITTED: u16 = 4003;

/// The other end broke the protocol.
pub const PROTOCOL_ERROR: u16 = 4004;
