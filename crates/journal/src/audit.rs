//! Rows that are only ever added, each bound to the one before it by a hash.
