//! Paces starts: only so many servers are started at the same time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A start holds its place this long at most: one that hangs, or installs something first, holds
/// up nobody.
const PLACE_MAX: Duration = Duration::from_secs(2);

/// Waits for a place and begins a start in it.
pub(super) async fn paced<F: Future>(
    places: &Arc<Semaphore>,
    start: impl FnOnce() -> F,
) -> F::Output {
    // Nobody closes it; without places there is no pace.
    let place = places.acquire().await.ok();
    let mut start = pin!(start());
    if let Ok(done) = timeout(PLACE_MAX, &mut start).await {
        return done;
    }
    drop(place);
    start.await
}
