//! Translation between the two protocol eras: raw bytes in, raw bytes out.
//!
//! Inputs are trusted to be validated JSON. Members unknown to both eras pass unchanged.

pub mod error_translation;
pub mod header_params;
pub mod input_required;
pub mod request_meta;
pub mod result_translation;
pub mod task_translation;
