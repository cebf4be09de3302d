//! The desktop keychain, accessed through a command-line program.
//!
//! Linux uses `secret-tool` of libsecret; macOS uses `security`, untested.

use std::ffi::OsString;

use super::SecretValue;
use super::secret_program::{OutputPart, ProgramRun, SecretProgramError};
use crate::EnvVars;

/// Service name of our secrets in the keychain.
const KEYCHAIN_SERVICE: &str = "bowline";

/// Whether the macOS program is used.
const IS_MACOS: bool = cfg!(target_os = "macos");

/// Stores a secret, replacing any previous value.
pub(super) fn store_secret(
    name: &str,
    value: &str,
    env: &EnvVars,
) -> Result<(), SecretProgramError> {
    let run = if IS_MACOS {
        // Passed on stdin, since arguments are visible to others; in hex, since `security` parses
        // quotes.
        let hex = bowline_core::hex::to_hex(value.as_bytes());
        let line = format!("add-generic-password -U -s {KEYCHAIN_SERVICE} -a {name} -X {hex}\n");
        build_run(
            "security",
            &["-i"],
            SecretValue::new(line),
            OutputPart::Exit,
        )
    } else {
        let label = format!("{KEYCHAIN_SERVICE} {name}");
        let args = [
            "store",
            "--label",
            &label,
            "service",
            KEYCHAIN_SERVICE,
            "name",
            name,
        ];
        build_run(
            "secret-tool",
            &args,
            SecretValue::new(value.to_owned()),
            OutputPart::Exit,
        )
    };
    run.run_blocking(env).map(drop)
}

/// Reads a secret.
pub(super) fn lookup_secret(name: &str, env: &EnvVars) -> Result<SecretValue, SecretProgramError> {
    let run = if IS_MACOS {
        let args = [
            "find-generic-password",
            "-s",
            KEYCHAIN_SERVICE,
            "-a",
            name,
            "-w",
        ];
        build_run("security", &args, SecretValue::default(), OutputPart::Line)
    } else {
        let args = ["lookup", "service", KEYCHAIN_SERVICE, "name", name];
        build_run(
            "secret-tool",
            &args,
            SecretValue::default(),
            OutputPart::Whole,
        )
    };
    run.run_blocking(env)
}

/// Deletes a secret.
pub(super) fn delete_secret(name: &str, env: &EnvVars) -> Result<(), SecretProgramError> {
    let run = if IS_MACOS {
        let args = [
            "delete-generic-password",
            "-s",
            KEYCHAIN_SERVICE,
            "-a",
            name,
        ];
        build_run("security", &args, SecretValue::default(), OutputPart::Exit)
    } else {
        let args = ["clear", "service", KEYCHAIN_SERVICE, "name", name];
        build_run(
            "secret-tool",
            &args,
            SecretValue::default(),
            OutputPart::Exit,
        )
    };
    run.run_blocking(env).map(drop)
}

fn build_run(program: &str, args: &[&str], input: SecretValue, part: OutputPart) -> ProgramRun {
    ProgramRun {
        program: program.into(),
        args: args.iter().map(OsString::from).collect(),
        directory: None,
        input,
        part,
    }
}
