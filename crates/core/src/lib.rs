//! What is decided, without side effects: every module is a value or a machine that is told the
//! time.
//!
//! No module of this crate opens a socket, spawns a task, reads a clock or touches a disk.

pub mod askers;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod byte_rate;
pub mod cache;
pub mod call;
pub mod caller;
pub mod coalesce;
pub mod egress;
pub mod era;
pub mod error;
pub mod fair_queue;
pub mod flow;
pub mod heap;
pub mod hex;
pub mod lane;
pub mod level;
pub mod lint;
pub mod load;
pub mod lru;
pub mod mailbox;
pub mod name;
pub mod ordered;
pub mod pending;
pub mod pins;
pub mod policy;
pub mod rates;
pub mod recovery;
pub mod redact;
pub mod resume;
pub mod run;
pub mod search;
pub mod seats;
pub mod seen;
pub mod shares;
pub mod subscriptions;
pub mod supervision;
pub mod sync;
pub mod tasks;
pub mod template;
pub mod time;
pub mod trace;
