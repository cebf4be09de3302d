//! `cargo xtask check`: formatting, clippy with warnings denied, the features of the
//! library, tidy, rules for dependencies.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Result;

use crate::{deny, process, tidy};

/// Features of `bowline-host`: each builds alone, and so does none.
const HOST_FEATURES: [&str; 7] = [
    "",
    "broker",
    "executor",
    "http",
    "journal-sqlite",
    "policy-cel",
    "schema",
];

/// Runs all steps even after a failure, so that one run shows every problem.
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
    for feature in HOST_FEATURES {
        if let Err(error) = check_host_feature(root, feature) {
            eprintln!("check: {error:#}");
            failed.push("features");
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

/// Checks the library of `bowline-host` with one feature; no part of it may be unused.
fn check_host_feature(root: &Path, feature: &str) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["clippy", "--package", "bowline-host", "--lib", "--quiet"])
        .args(["--no-default-features", "--features", feature])
        .args(["--", "-D", "warnings"])
        .current_dir(root);
    process::run_inherited(&mut cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_feature_is_checked_alone() {
        let root = crate::repo::workspace_root().unwrap();
        let manifest = std::fs::read_to_string(root.join("crates/host/Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let features = manifest["features"].as_table().unwrap().keys();
        let single = features.filter(|name| !["default", "full"].contains(&name.as_str()));
        let single: Vec<&str> = single.map(String::as_str).collect();
        assert_eq!(single, HOST_FEATURES[1..]);
    }
}
