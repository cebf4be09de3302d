//! What every component shares and which needs Tokio or a clock: time, tasks, jitter of
//! retries, credentials.

mod clock;
mod credential_source;
pub mod fifo_watch;
mod jitter;
mod task_tracker;
pub mod timer;

pub use clock::{Clock, ClockReading, SystemClock};
pub use credential_source::CredentialSource;
pub use jitter::JitterSource;
pub use task_tracker::{TaskSpawner, TaskTracker};
