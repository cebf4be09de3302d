//! One era of the protocol in the words of the other: raw bytes in, raw bytes out.
//!
//! The texts are trusted to be JSON that was checked before. Members that neither era knows pass
//! as they were written.

mod change;
pub mod error;
pub mod input;
pub mod meta;
pub mod mirror;
pub mod result;
pub mod tasks;

pub use change::{Change, applied};
