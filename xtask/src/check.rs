//! `cargo xtask check`: formatting, clippy with warnings denied, tidy, rules for dependencies.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Result;

use crate::{deny, process, tidy};

/// Runs all four steps even after a failure, so that one run shows every problem.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let mut failed = Vec::new();
    let steps: [(&str, &[&str]); 2] = [
        ("fmt", &["fmt", "--all", "--check"]),
        (
            "clippy",
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
        ),
    ];
    for (name, args) in steps {
        if let Err(error) =
            process::run_inherited(Command::new("cargo").args(args).current_dir(root))
        {
            eprintln!("check: {error:#}");
            failed.push(name);
        }
    }
    if tidy::run(root)? != ExitCode::SUCCESS {
        failed.push("tidy");
    }
    if let Err(error) = deny::run(root) {
        eprintln!("check: {error:#}");
        failed.push("deny");
    }
    if failed.is_empty() {
        println!("check: ok");
        return Ok(ExitCode::SUCCESS);
    }
    println!("check: failed ({})", failed.join(", "));
    Ok(ExitCode::FAILURE)
}
