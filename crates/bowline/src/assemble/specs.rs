//! Translates the servers of a configuration into the specs that a host takes into care.

use std::path::PathBuf;
use std::sync::Arc;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::supervision::RestartPolicy;
use bowline_host::redaction::ResultSecrets;
use bowline_host::spec::{PlacedSpec, Reach, RemoteSpec, ServerSpec};

use super::children::{Ground, child_of};
use super::credentials::{Headers, Learners};
use super::executors;
use crate::config::{self, ArgvSecrets, Config, Env, ServerConfig};
use crate::telemetry::Secrets;

/// Translates every server. Each spec learns its own secrets, and those of all servers together.
pub(super) fn specs_of(
    config: &Config,
    ground: &Ground,
    env: &Env,
    (secrets, results): (&Secrets, &Arc<ResultSecrets>),
) -> Vec<ServerSpec> {
    let hidden = ground.hidden(config, env);
    let servers = config.servers.iter();
    let specs = servers.map(|server| {
        let learners = Learners {
            server: Arc::new(server.secrets.redactor()),
            all: secrets.clone(),
            results: Arc::clone(results),
        };
        spec_of(server, (ground, &hidden), env, learners)
    });
    specs.collect()
}

/// Translates what the file says into what the host needs.
fn spec_of(
    server: &ServerConfig,
    ground: (&Ground, &[PathBuf]),
    env: &Env,
    learners: Learners,
) -> ServerSpec {
    ServerSpec {
        isolation: server.isolation,
        speaks: server.speaks,
        lazy: server.lazy,
        start_timeout: server.start_timeout,
        install_timeout: server.install_timeout,
        idle_stop: server.idle_stop,
        ping: server.ping,
        relist: server.relist,
        drain_timeout: server.drain_timeout,
        call_timeout: server.call_timeout,
        calls_max: server.calls_max as usize,
        queue_max: server.queue_max as usize,
        list_max: server.list_max as usize,
        result_max: server.result_max,
        restart: RestartPolicy {
            restarts_max: server.restart.budget,
            window: server.restart.window,
        },
        backoff: Backoff {
            base: server.restart.backoff_min,
            cap: server.restart.backoff_max,
        },
        breaker: BreakerPolicy {
            failures_max: server.breaker.failures,
            rest: server.breaker.rest,
        },
        pin: server.pin,
        cache: server.cache,
        check_output: server.check_output,
        redact_results: (server.redact_results).then(|| Arc::clone(&learners.results)),
        argv_secrets: server.argv_secrets == ArgvSecrets::Allow,
        tools: server.tools.clone(),
        secrets: Arc::clone(&learners.server),
        ..ServerSpec::reached(&server.name, reach_of(&server.reach, ground, env, learners))
    }
}

fn reach_of(
    reach: &config::Reach,
    ground: (&Ground, &[PathBuf]),
    env: &Env,
    learners: Learners,
) -> Reach {
    match reach {
        config::Reach::Child(child) => Reach::Child(child_of(child, ground, env)),
        config::Reach::Remote(remote) => Reach::Remote(RemoteSpec {
            url: remote.url.clone(),
            transport: remote.transport,
            credentials: Arc::new(Headers::of(remote, learners)),
            via: remote.via.as_ref().map(executors::placement),
        }),
        config::Reach::Placed(placed) => Reach::Placed(PlacedSpec {
            executor: Arc::clone(&placed.executor),
            server: Arc::clone(&placed.server),
        }),
    }
}
