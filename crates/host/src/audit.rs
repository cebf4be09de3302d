//! The port for the trail of what was called and what was refused.

use std::fmt;

/// Takes one row for each call, however it ended.
pub trait Audit: fmt::Debug + Send + Sync {}

/// Keeps no trail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unaudited;

impl Audit for Unaudited {}
