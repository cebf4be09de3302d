//! The host as a library: built without files, changed at run time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod in_process;
mod missing_features;
mod routing;
mod shared_process;
mod spawning;

use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_host::access_guard::{AccessGuard, GuardDecision};
use bowline_host::tools::ExecuteError;
use bowline_host::{Host, HostBuilder, ToolOutput};
use bowline_testkit::{ScriptedDial, SimWorld};

fn owner_principal() -> Principal {
    Principal::new("owner", Role::Owner)
}

fn named_principal(role: &str) -> Principal {
    Principal::new("ann", Role::Named(role.into()))
}

fn host_builder(world: &SimWorld) -> HostBuilder {
    Host::builder().dial(Arc::new(ScriptedDial::new(world.clone())))
}

fn build_host(world: &SimWorld) -> Host {
    host_builder(world).build().unwrap()
}

fn output_text(outcome: Result<ToolOutput, ExecuteError>) -> String {
    outcome.unwrap().text().into_owned()
}

/// A guard that refuses a server or a tool.
#[derive(Debug)]
struct DenyGuard(&'static str, Option<&'static str>);

impl AccessGuard for DenyGuard {
    fn check_access(&self, server: &str, tool: Option<&str>) -> GuardDecision {
        match (server, tool) == (self.0, self.1) {
            true => GuardDecision::Deny {
                reason: "not on the list".into(),
            },
            false => GuardDecision::Allow,
        }
    }
}
