//! Limits the number of concurrent server starts.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A start holds its permit at most this long: a hanging or installing server delays no further
/// start.
const PERMIT_HOLD_MAX: Duration = Duration::from_secs(2);

/// Acquires a permit and begins the start.
pub(super) async fn start_with_permit<F: Future>(
    permits: &Arc<Semaphore>,
    start: impl FnOnce() -> F,
) -> F::Output {
    // The semaphore is never closed.
    let permit = permits.acquire().await.ok();
    let mut start = pin!(start());
    if let Ok(done) = timeout(PERMIT_HOLD_MAX, &mut start).await {
        return done;
    }
    drop(permit);
    start.await
}
