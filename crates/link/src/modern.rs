//! What links with servers of the modern era share, whatever carries their messages: how such a
//! server is recognised, how requests of the other era are written for it, how its questions are
//! brought to a caller that knows no rounds, and how it is listened to.
//!
//! A link does this with a request, by the era of its server and that of the request:
//! the same: it is sent as it is. A modern request for a legacy server: [`params::to_legacy`].
//! A legacy request for a modern server: [`rounds::drive`], which writes it with
//! [`params::to_modern`] and sends it as often as its server asks. A request always says the era
//! that it is sent in, and so does the answer to it.

mod ask;
pub(crate) mod discover;
pub(crate) mod listen;
pub(crate) mod params;
pub(crate) mod rounds;
mod tasks;

pub use listen::Filter;
