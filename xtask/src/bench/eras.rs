//! What it costs that caller and server speak two eras of the protocol: calls over the pipes of a
//! real child, in one process and in turn.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{gates, report::Report};
use crate::process;

/// A translated call is measured against one of its caller's era.
const PAIRS: [(&str, &str, &str, &str); 2] = [
    (
        "to-modern",
        "live",
        "to_modern_ratio",
        "to_modern_instructions",
    ),
    (
        "to-legacy",
        "modern",
        "to_legacy_ratio",
        "to_legacy_instructions",
    ),
];

/// Builds and runs the example `gates` of the host; counts instructions where valgrind is there.
pub(super) fn measure(root: &Path, report: &mut Report) -> Result<()> {
    let gates = gates::build(root)?;
    let said = process::quiet(Command::new(&gates).arg("eras"))?;
    let said: Value = serde_json::from_str(said.trim()).context("what `gates` said")?;
    let nanos = |kind: &str| said.get(kind).and_then(Value::as_f64);
    for (translated, same, figure, _) in PAIRS {
        let ratio = nanos(translated).zip(nanos(same));
        report.set(figure, ratio.map(|(one, other)| one / other));
    }
    if process::output(root, "valgrind", &["--version"]).is_err() {
        report.leave_out("eras, instructions", "valgrind is not installed");
        return Ok(());
    }
    for (translated, same, _, figure) in PAIRS {
        let ratio = gates::per_call(&gates, translated)? / gates::per_call(&gates, same)?;
        report.set(figure, Some(ratio));
    }
    Ok(())
}
