//! Runs long computations off the serving thread: few at once, a single one per principal.
//!
//! The runtime serves every caller on a single thread. A computation with caller-controlled length
//! (a condition over long arguments, the scan of a large body) runs on the blocking pool instead.
//! The owner has separate workers, so that its jobs never wait behind jobs of other principals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{Principal, Role};
use bowline_core::error::CallError;
use bowline_core::sync::lock;
use foldhash::fast::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent jobs of all principals except the owner.
pub const WORKERS_MAX: usize = 2;

/// Concurrent jobs of the owner.
pub const OWNER_WORKERS_MAX: usize = 2;

/// Running and waiting jobs per principal.
pub const PRINCIPAL_JOBS_MAX: usize = 64;

/// Retry delay for a caller with too many jobs.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffloadError {
    /// The principal has too many jobs.
    #[error("{PRINCIPAL_JOBS_MAX} requests of this principal that take long are under way")]
    TooManyJobs,
    /// The job was lost: runtime shutdown or panic.
    #[error("the computation did not end")]
    Lost,
}

impl OffloadError {
    /// Converts to the caller's error; the tool did not run.
    #[must_use]
    pub fn to_call_error(self, principal: &Principal) -> CallError {
        match self {
            Self::TooManyJobs => CallError::RateExceeded {
                principal: Arc::clone(&principal.name),
                after: BUSY_WAIT,
            },
            Self::Lost => CallError::ShuttingDown,
        }
    }
}

/// Runs jobs off the serving thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OffloadPool(Arc<OffloadInner>);

#[derive(Debug)]
struct OffloadInner {
    workers: Arc<Semaphore>,
    owner_workers: Arc<Semaphore>,
    /// The principals with jobs.
    principals: Mutex<HashMap<Arc<str>, PrincipalJobs, RandomState>>,
}

/// The jobs of a principal.
#[derive(Debug)]
struct PrincipalJobs {
    /// Lets a single job request a worker, so that principals take turns.
    turn_permit: Arc<Semaphore>,
    /// Running and waiting jobs.
    jobs: usize,
}

/// A job of a principal, released on drop.
#[derive(Debug)]
struct JobSlot {
    pool: Arc<OffloadInner>,
    principal: Arc<str>,
}

/// The permits of a running job.
type JobPermits = (
    OwnedSemaphorePermit,
    Option<(OwnedSemaphorePermit, JobSlot)>,
);

impl Default for OffloadPool {
    fn default() -> Self {
        Self(Arc::new(OffloadInner {
            workers: Arc::new(Semaphore::new(WORKERS_MAX)),
            owner_workers: Arc::new(Semaphore::new(OWNER_WORKERS_MAX)),
            principals: Mutex::default(),
        }))
    }
}

impl OffloadPool {
    /// Runs `job` on the blocking pool at the principal's turn. A started job continues if the
    /// future is dropped, and holds its worker until its end.
    ///
    /// # Errors
    /// Too many jobs, or the job was lost.
    pub async fn run_job<T, F>(&self, principal: &Principal, job: F) -> Result<T, OffloadError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let permits = self.acquire_permits(principal).await?;
        let running = tokio::task::spawn_blocking(move || {
            let _permits = permits;
            job()
        });
        running.await.map_err(|_| OffloadError::Lost)
    }

    async fn acquire_permits(&self, principal: &Principal) -> Result<JobPermits, OffloadError> {
        if principal.role == Role::Owner {
            return Ok((acquire_permit(&self.0.owner_workers).await?, None));
        }
        let (slot, turn_permit) = self.enter_job(&principal.name)?;
        let turn_permit = acquire_permit(&turn_permit).await?;
        let worker = acquire_permit(&self.0.workers).await?;
        Ok((worker, Some((turn_permit, slot))))
    }

    fn enter_job(&self, principal: &Arc<str>) -> Result<(JobSlot, Arc<Semaphore>), OffloadError> {
        let mut lanes = lock(&self.0.principals);
        let lane = lanes
            .entry(Arc::clone(principal))
            .or_insert_with(|| PrincipalJobs {
                turn_permit: Arc::new(Semaphore::new(1)),
                jobs: 0,
            });
        if lane.jobs >= PRINCIPAL_JOBS_MAX {
            return Err(OffloadError::TooManyJobs);
        }
        lane.jobs += 1;
        let slot = JobSlot {
            pool: Arc::clone(&self.0),
            principal: Arc::clone(principal),
        };
        Ok((slot, Arc::clone(&lane.turn_permit)))
    }
}

impl Drop for JobSlot {
    fn drop(&mut self) {
        let mut lanes = lock(&self.pool.principals);
        if let Some(lane) = lanes.get_mut(&self.principal) {
            lane.jobs = lane.jobs.saturating_sub(1);
            if lane.jobs == 0 {
                lanes.remove(&self.principal);
            }
        }
    }
}

async fn acquire_permit(semaphore: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, OffloadError> {
    let acquired = Arc::clone(semaphore).acquire_owned().await;
    acquired.map_err(|_| OffloadError::Lost)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn named_principal(name: &str) -> Principal {
        Principal::new(name, Role::Named("r".into()))
    }

    #[tokio::test]
    async fn principal_runs_single_job_at_once() {
        let offload = OffloadPool::default();
        let (ann, bob) = (named_principal("ann"), named_principal("bob"));
        let (go, gate) = mpsc::channel::<()>();
        let (began, mut first_began) = tokio::sync::oneshot::channel();
        let held = offload.run_job(&ann, move || {
            began.send(()).unwrap();
            gate.recv().unwrap();
        });
        let mut held = std::pin::pin!(held);
        tokio::select! {
            _ = &mut held => panic!("the gate is shut"),
            begun = &mut first_began => begun.unwrap(),
        }
        let mut second = std::pin::pin!(offload.run_job(&ann, || 2));
        tokio::select! {
            biased;
            _ = &mut second => panic!("two jobs of one principal run"),
            other = offload.run_job(&bob, || 3) => assert_eq!(other, Ok(3)),
        }
        go.send(()).unwrap();
        assert_eq!(held.await, Ok(()));
        assert_eq!(second.await, Ok(2));
        assert!(lock(&offload.0.principals).is_empty());
    }

    #[tokio::test]
    async fn too_many_jobs_are_refused() {
        let offload = OffloadPool::default();
        let ann = named_principal("ann");
        let places: Vec<_> = (0..PRINCIPAL_JOBS_MAX)
            .map(|_| offload.enter_job(&ann.name).unwrap())
            .collect();
        assert_eq!(
            offload.run_job(&ann, || ()).await,
            Err(OffloadError::TooManyJobs)
        );
        assert_eq!(offload.run_job(&named_principal("bob"), || 1).await, Ok(1));
        drop(places);
        assert_eq!(offload.run_job(&ann, || 1).await, Ok(1));
    }
}
