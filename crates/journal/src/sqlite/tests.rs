//! Tests of what only a journal on a disk can do.
