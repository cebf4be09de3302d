//! Where callers come in.

pub mod guard;
