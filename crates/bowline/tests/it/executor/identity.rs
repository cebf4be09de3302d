//! Who may be which executor.
