//! Pure decision logic: every module is a value or a state machine with time as an argument.
//!
//! No module of this crate opens a socket, spawns a task, reads a clock or touches a disk.

pub mod accounts;
pub mod backoff;
mod box_future;
pub mod breaker;
pub mod budget;
pub mod byte_rate;
pub mod cache;
pub mod call;
pub mod client_handle;
pub mod coalesce;
pub mod duration;
pub mod egress;
pub mod era;
pub mod error;
pub mod fair_queue;
pub mod heap;
pub mod hex;
pub mod lane;
pub mod lint;
pub mod load;
pub mod log_level;
pub mod lru;
pub mod name;
pub mod peer_role;
pub mod pending_table;
pub mod pins;
pub mod policy;
pub mod rate_limiter;
pub mod recovery;
pub mod redact;
pub mod resource_links;
pub mod restart_budget;
pub mod retry;
pub mod run;
pub mod search;
pub mod secret_header;
pub mod session_identity;
pub mod shares;
pub mod subscriptions;
#[cfg(feature = "suggest")]
pub mod suggest;
pub mod sync;
pub mod task_table;
pub mod time;
pub mod trace;
pub mod uri_template;

pub use box_future::BoxFuture;
