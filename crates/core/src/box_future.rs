//! The boxed future of traits that are used as trait objects.

use std::future::Future;
use std::pin::Pin;

/// A boxed future, so that a method of a trait object can return a future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
