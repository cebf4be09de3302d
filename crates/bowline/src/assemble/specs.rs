//! Translates the servers of a configuration into host specs.

use std::sync::Arc;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::spec::{ExecutorProcessSpec, RemoteSpec, ServerSpec, ServerTransport};

use super::children::{ChildDefaults, ChildSpecContext, build_child_spec};
use super::credential_headers::{SecretRedactors, UpstreamHeaders};
use super::dial_executors;
use super::gateway_redactors::GatewayRedactors;
use bowline_config::{ArgvSecrets, Config, EnvVars, ServerConfig};

/// Translates every server. Each spec gets the redactors of the server and of all servers.
pub(super) fn build_server_specs(
    config: &Config,
    child_defaults: &ChildDefaults,
    env: &EnvVars,
    gateway_redactors: &GatewayRedactors,
) -> Vec<ServerSpec> {
    let hidden = child_defaults.hidden_paths(config, env);
    let context = ChildSpecContext {
        defaults: child_defaults,
        hidden: &hidden,
        env,
    };
    let servers = config.servers.iter();
    let specs = servers.map(|server| {
        let redactors = SecretRedactors {
            server_messages: Arc::new(server.secrets.redactor()),
            logs: gateway_redactors.logs.clone(),
            results: Arc::clone(&gateway_redactors.results),
        };
        build_server_spec(server, context, redactors)
    });
    specs.collect()
}

/// Translates the config of one server into a host spec.
fn build_server_spec(
    server: &ServerConfig,
    context: ChildSpecContext<'_>,
    redactors: SecretRedactors,
) -> ServerSpec {
    ServerSpec {
        isolation: server.isolation,
        era: server.era_setting,
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
            cooldown: server.breaker.open_time,
        },
        pin: server.pin,
        cache: server.cache,
        check_output: server.check_output,
        redact_results: (server.redact_results).then(|| Arc::clone(&redactors.results)),
        argv_secrets: server.argv_secrets == ArgvSecrets::Allow,
        tools: server.tools.clone(),
        secrets: Arc::clone(&redactors.server_messages),
        ..ServerSpec::with_transport(
            &server.name,
            build_reach_spec(&server.upstream, context, redactors),
        )
    }
}

fn build_reach_spec(
    reach: &bowline_config::UpstreamConfig,
    context: ChildSpecContext<'_>,
    redactors: SecretRedactors,
) -> ServerTransport {
    match reach {
        bowline_config::UpstreamConfig::Child(child) => {
            ServerTransport::Child(build_child_spec(child, context))
        }
        bowline_config::UpstreamConfig::Remote(remote) => ServerTransport::Remote(RemoteSpec {
            url: remote.url.clone(),
            transport: remote.transport,
            credentials: Arc::new(UpstreamHeaders::from_remote(remote, redactors)),
            via: remote.via.as_ref().map(dial_executors::to_placement),
        }),
        bowline_config::UpstreamConfig::Placed(placed) => {
            ServerTransport::Executor(ExecutorProcessSpec {
                executor: Arc::clone(&placed.executor),
                server: Arc::clone(&placed.server),
            })
        }
    }
}
