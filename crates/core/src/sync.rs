//! The one way to take a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a machine. A poisoned one is still whole: no machine is left half changed by a panic.
///
/// It returns the guard itself, so that the lint on guards held over an await can see it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
