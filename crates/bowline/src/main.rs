//! The `bowline` binary.

fn main() {}
