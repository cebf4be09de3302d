//! Stands in for compiled schemas without the feature `schema`: no schema compiles, so that every
//! tool with an output schema is reported as unchecked.

use std::convert::Infallible;

use thiserror::Error;

/// Why a schema is unusable.
#[derive(Debug, Error)]
#[error("this program was built without the feature `schema` of bowline-host")]
pub(super) struct SchemaError;

/// There is no compiled schema.
#[derive(Debug)]
pub(super) struct CompiledSchema(Infallible);

impl CompiledSchema {
    /// Refuses every schema.
    pub(super) const fn compile(_text: &[u8]) -> Result<Self, SchemaError> {
        Err(SchemaError)
    }

    pub(super) const fn bytes(&self) -> usize {
        match self.0 {}
    }

    pub(super) const fn validate(&self, _content: &[u8]) -> Result<(), Infallible> {
        match self.0 {}
    }
}
