//! Report of a test that cannot run on this machine, so that nothing passes silently.

use std::io::Write as _;

/// Names a test that is left out, past the output capture of the test harness. `cargo xtask test`
/// and `cargo xtask roundtrip` repeat these lines at their end.
pub fn report_omitted(test: &str, reason: &str) {
    // A closed standard error must not fail the test.
    let _ = writeln!(std::io::stderr(), "left out: {test} ({reason})");
}
