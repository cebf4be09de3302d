//! The host as a library: built without files, fed and asked while it runs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod inside;
mod routing;
mod spawning;
mod together;

use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_host::guard::{Guard, Verdict};
use bowline_host::tools::ExecuteError;
use bowline_host::{Host, HostBuilder, ToolOutput};
use bowline_sim::{ScriptedDial, World};

fn owner() -> Principal {
    Principal::new("owner", Role::Owner)
}

fn named(role: &str) -> Principal {
    Principal::new("ann", Role::Named(role.into()))
}

fn builder(world: &World) -> HostBuilder {
    Host::builder().dial(Arc::new(ScriptedDial::new(world.clone())))
}

fn host(world: &World) -> Host {
    builder(world).build().unwrap()
}

fn text(outcome: Result<ToolOutput, ExecuteError>) -> String {
    outcome.unwrap().text().into_owned()
}

/// A guard that refuses one server, or one tool of it.
#[derive(Debug)]
struct Refuses(&'static str, Option<&'static str>);

impl Guard for Refuses {
    fn check(&self, server: &str, tool: Option<&str>) -> Verdict {
        match (server, tool) == (self.0, self.1) {
            true => Verdict::Deny {
                reason: "not on the list".into(),
            },
            false => Verdict::Allow,
        }
    }
}
