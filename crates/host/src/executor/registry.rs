//! The executors that a gateway knows.

/// The executors of a gateway, by name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Executors;
