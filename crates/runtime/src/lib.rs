//! What every component shares and which needs Tokio or a clock: time, tasks,
//! credentials.

mod clock;
mod credential_source;
pub mod fifo_watch;
mod task_tracker;
pub mod timer;

pub use clock::{Clock, ClockReading, SystemClock};
pub use credential_source::CredentialSource;
pub use task_tracker::{TaskSpawner, TaskTracker};
