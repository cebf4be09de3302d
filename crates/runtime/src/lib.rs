//! What every component shares and which needs Tokio or a clock: time, tasks and their services,
//! life cycles, wakers, credentials.

mod clock;
mod credential_source;
pub mod fifo_watch;
mod lifecycle;
mod service;
mod task_tracker;
pub mod timer;
mod work;

pub use clock::{Clock, ClockReading, SystemClock};
pub use credential_source::CredentialSource;
pub use lifecycle::{ActivityGuard, Lifecycle, Shutdown};
pub use service::Service;
pub use task_tracker::{TaskSpawner, TaskTracker};
pub use work::Work;
