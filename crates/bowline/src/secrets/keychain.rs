//! The keychain of the desktop, through the program that belongs to it.
//!
//! On Linux that is `secret-tool` of libsecret; on macOS it is `security`, which is untested.

use std::ffi::OsString;

use super::Value;
use super::command::{Error, Run, Wants};
use crate::config::Env;

/// Under which name our secrets stand there.
const SERVICE: &str = "bowline";

/// Whether the programs are those of macOS.
const IS_MACOS: bool = cfg!(target_os = "macos");

/// Puts a secret there, in place of one of that name.
pub(super) fn store(name: &str, value: &str, env: &Env) -> Result<(), Error> {
    let run = if IS_MACOS {
        // Read from stdin, since arguments can be seen by others; in hex, since it reads quotes.
        let hex = crate::state::hex(value.as_bytes());
        let line = format!("add-generic-password -U -s {SERVICE} -a {name} -X {hex}\n");
        run("security", &["-i"], Value::new(line), Wants::Exit)
    } else {
        let label = format!("{SERVICE} {name}");
        let args = ["store", "--label", &label, "service", SERVICE, "name", name];
        run(
            "secret-tool",
            &args,
            Value::new(value.to_owned()),
            Wants::Exit,
        )
    };
    run.wait(env).map(drop)
}

/// Reads a secret.
pub(super) fn lookup(name: &str, env: &Env) -> Result<Value, Error> {
    let run = if IS_MACOS {
        let args = ["find-generic-password", "-s", SERVICE, "-a", name, "-w"];
        run("security", &args, Value::default(), Wants::Line)
    } else {
        let args = ["lookup", "service", SERVICE, "name", name];
        run("secret-tool", &args, Value::default(), Wants::Whole)
    };
    run.wait(env)
}

/// Takes a secret away.
pub(super) fn clear(name: &str, env: &Env) -> Result<(), Error> {
    let run = if IS_MACOS {
        let args = ["delete-generic-password", "-s", SERVICE, "-a", name];
        run("security", &args, Value::default(), Wants::Exit)
    } else {
        let args = ["clear", "service", SERVICE, "name", name];
        run("secret-tool", &args, Value::default(), Wants::Exit)
    };
    run.wait(env).map(drop)
}

fn run(program: &str, args: &[&str], input: Value, wants: Wants) -> Run {
    Run {
        program: program.into(),
        args: args.iter().map(OsString::from).collect(),
        directory: None,
        input,
        wants,
    }
}
