//! Runs long computations off the serving thread: few at once, one at a time for each principal.
//!
//! The runtime serves every caller on one thread. A computation whose length a caller decides
//! (a condition over long arguments, the scan of a large body) runs on the blocking pool instead.
//! The owner has workers of its own, so that jobs of others never stand before the owner's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{Principal, Role};
use bowline_core::error::CallError;
use bowline_core::sync::lock;
use foldhash::fast::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Jobs of all principals but the owner that run at once.
pub const WORKERS_MAX: usize = 2;

/// Jobs of the owner that run at once.
pub const OWNER_WORKERS_MAX: usize = 2;

/// Jobs of one principal that run or wait.
pub const PRINCIPAL_JOBS_MAX: usize = 64;

/// How long a caller is told to wait that has too many jobs.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffloadError {
    /// The principal has as many jobs as it may.
    #[error("{PRINCIPAL_JOBS_MAX} requests of this principal that take long are under way")]
    TooManyJobs,
    /// The job did not end, because the runtime stops or because it panicked.
    #[error("the computation did not end")]
    Lost,
}

impl OffloadError {
    /// Returns what the caller of a tool is told; the tool did not run.
    #[must_use]
    pub fn to_call_error(self, principal: &Principal) -> CallError {
        match self {
            Self::TooManyJobs => CallError::TooFast {
                principal: Arc::clone(&principal.name),
                after: BUSY_WAIT,
            },
            Self::Lost => CallError::ShuttingDown,
        }
    }
}

/// Runs jobs off the serving thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Offload(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    workers: Arc<Semaphore>,
    owner_workers: Arc<Semaphore>,
    /// The principals that have jobs.
    lanes: Mutex<HashMap<Arc<str>, Lane, RandomState>>,
}

/// The jobs of one principal.
#[derive(Debug)]
struct Lane {
    /// Lets one job at a time ask for a worker, so that principals take turns.
    turn: Arc<Semaphore>,
    /// Jobs that run or wait.
    jobs: usize,
}

/// One job of a principal, until it is dropped.
#[derive(Debug)]
struct Place {
    pool: Arc<Pool>,
    principal: Arc<str>,
}

/// The permits that a running job holds.
type Permits = (OwnedSemaphorePermit, Option<(OwnedSemaphorePermit, Place)>);

impl Default for Offload {
    fn default() -> Self {
        Self(Arc::new(Pool {
            workers: Arc::new(Semaphore::new(WORKERS_MAX)),
            owner_workers: Arc::new(Semaphore::new(OWNER_WORKERS_MAX)),
            lanes: Mutex::default(),
        }))
    }
}

impl Offload {
    /// Runs `job` on the blocking pool once the principal has its turn. A job that began goes on
    /// when the future is dropped, and holds its worker until it ends.
    ///
    /// # Errors
    /// The principal has too many jobs, or the job did not end.
    pub async fn run<T, F>(&self, principal: &Principal, job: F) -> Result<T, OffloadError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let permits = self.permits(principal).await?;
        let running = tokio::task::spawn_blocking(move || {
            let _permits = permits;
            job()
        });
        running.await.map_err(|_| OffloadError::Lost)
    }

    async fn permits(&self, principal: &Principal) -> Result<Permits, OffloadError> {
        if principal.role == Role::Owner {
            return Ok((acquire(&self.0.owner_workers).await?, None));
        }
        let (place, turn) = self.enter(&principal.name)?;
        let turn = acquire(&turn).await?;
        let worker = acquire(&self.0.workers).await?;
        Ok((worker, Some((turn, place))))
    }

    fn enter(&self, principal: &Arc<str>) -> Result<(Place, Arc<Semaphore>), OffloadError> {
        let mut lanes = lock(&self.0.lanes);
        let lane = lanes.entry(Arc::clone(principal)).or_insert_with(|| Lane {
            turn: Arc::new(Semaphore::new(1)),
            jobs: 0,
        });
        if lane.jobs >= PRINCIPAL_JOBS_MAX {
            return Err(OffloadError::TooManyJobs);
        }
        lane.jobs += 1;
        let place = Place {
            pool: Arc::clone(&self.0),
            principal: Arc::clone(principal),
        };
        Ok((place, Arc::clone(&lane.turn)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lanes = lock(&self.pool.lanes);
        if let Some(lane) = lanes.get_mut(&self.principal) {
            lane.jobs = lane.jobs.saturating_sub(1);
            if lane.jobs == 0 {
                lanes.remove(&self.principal);
            }
        }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, OffloadError> {
    let acquired = Arc::clone(semaphore).acquire_owned().await;
    acquired.map_err(|_| OffloadError::Lost)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::new(name, Role::Named("r".into()))
    }

    #[tokio::test]
    async fn one_principal_runs_one_job_at_a_time() {
        let offload = Offload::default();
        let (ann, bob) = (principal("ann"), principal("bob"));
        let (go, gate) = mpsc::channel::<()>();
        let (began, mut first_began) = tokio::sync::oneshot::channel();
        let held = offload.run(&ann, move || {
            began.send(()).unwrap();
            gate.recv().unwrap();
        });
        let mut held = std::pin::pin!(held);
        tokio::select! {
            _ = &mut held => panic!("the gate is shut"),
            begun = &mut first_began => begun.unwrap(),
        }
        let mut second = std::pin::pin!(offload.run(&ann, || 2));
        tokio::select! {
            biased;
            _ = &mut second => panic!("two jobs of one principal run"),
            other = offload.run(&bob, || 3) => assert_eq!(other, Ok(3)),
        }
        go.send(()).unwrap();
        assert_eq!(held.await, Ok(()));
        assert_eq!(second.await, Ok(2));
        assert!(lock(&offload.0.lanes).is_empty());
    }

    #[tokio::test]
    async fn too_many_jobs_are_refused() {
        let offload = Offload::default();
        let ann = principal("ann");
        let places: Vec<_> = (0..PRINCIPAL_JOBS_MAX)
            .map(|_| offload.enter(&ann.name).unwrap())
            .collect();
        assert_eq!(
            offload.run(&ann, || ()).await,
            Err(OffloadError::TooManyJobs)
        );
        assert_eq!(offload.run(&principal("bob"), || 1).await, Ok(1));
        drop(places);
        assert_eq!(offload.run(&ann, || 1).await, Ok(1));
    }
}
