//! What is remembered: lanes and mailboxes, results by idempotency key, values with
//! compare-and-set, and the audit trail.
//!
//! [`Journal`] is the one contract; [`Sqlite`] keeps it on a disk, and [`Memory`] for tests and for
//! hosts without one.
//! Nothing here knows MCP: a message is bytes, and a lane is a name.

pub mod audit;
pub mod contract;
pub mod elapsed;
pub mod engine;
mod file_identity;
mod limits;
pub mod memory;
pub mod sqlite;
mod watches;

pub use engine::{
    At, BoxFuture, Delivery, Done, Draft, Entry, Expect, Filter, Health, Journal, JournalError,
    Known, Lane, LaneView, MessageId, Order, Pending, Published, Receipt, Standing, StoppedLane,
    Value, Watch,
};
pub use memory::Memory;
pub use sqlite::Sqlite;
