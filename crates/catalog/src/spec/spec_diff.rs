//! Differences between two specs of a server, by configuration key.

use std::sync::Arc;

use super::{ChildSpec, ExecutorProcessSpec, RemoteSpec, ServerSpec, ServerTransport};

impl ServerSpec {
    /// Returns the differing keys; empty if the server can stay unchanged.
    #[must_use]
    pub fn changed_keys(&self, other: &Self) -> Vec<&'static str> {
        // Destructured completely, so that new members cannot be forgotten.
        let Self {
            name,
            transport: reach,
            isolation,
            era: speaks,
            lazy,
            start_timeout,
            install_timeout,
            idle_stop,
            ping,
            relist,
            drain_timeout,
            call_timeout,
            calls_max,
            queue_max,
            list_max,
            result_max,
            restart,
            backoff,
            breaker,
            tools,
            pin,
            cache,
            check_output,
            redact_results,
            argv_secrets,
            card,
            // Derived from the rest, or the source of the rest.
            secrets: _,
            given_name: _,
        } = self;
        let mut keys = reach.changed_keys(&other.transport);
        let is_restart_same = *restart == other.restart && *backoff == other.backoff;
        // The set of secrets is not a property of a server.
        let is_redacted_same = redact_results.is_some() == other.redact_results.is_some();
        let rest = [
            ("name", *name == other.name),
            ("isolation", *isolation == other.isolation),
            ("era", *speaks == other.era),
            ("lazy", *lazy == other.lazy),
            ("start_timeout", *start_timeout == other.start_timeout),
            ("install_timeout", *install_timeout == other.install_timeout),
            ("idle_stop", *idle_stop == other.idle_stop),
            ("ping", *ping == other.ping),
            ("relist", *relist == other.relist),
            ("drain_timeout", *drain_timeout == other.drain_timeout),
            ("timeout", *call_timeout == other.call_timeout),
            ("max_calls", *calls_max == other.calls_max),
            ("queue", *queue_max == other.queue_max),
            ("max_list", *list_max == other.list_max),
            ("max_result", *result_max == other.result_max),
            ("restart", is_restart_same),
            ("breaker", *breaker == other.breaker),
            ("tools", *tools == other.tools),
            ("pin", *pin == other.pin),
            ("cache", *cache == other.cache),
            ("check_output", *check_output == other.check_output),
            ("redact_results", is_redacted_same),
            ("argv_secrets", *argv_secrets == other.argv_secrets),
            ("card", *card == other.card),
        ];
        keys.extend(differing_keys(&rest));
        keys
    }
}

impl ServerTransport {
    fn changed_keys(&self, other: &Self) -> Vec<&'static str> {
        match (self, other) {
            (Self::Child(one), Self::Child(two)) => one.changed_keys(two),
            (Self::Remote(one), Self::Remote(two)) => one.changed_keys(two),
            (Self::InProcess(one), Self::InProcess(two)) => {
                let is_same = Arc::ptr_eq(&one.executor, &two.executor);
                differing_keys(&[("executor", is_same)]).collect()
            }
            (Self::Executor(one), Self::Executor(two)) => one.changed_keys(two),
            (_, Self::Executor(_)) => vec!["via"],
            (_, Self::Remote(_)) => vec!["url"],
            (_, Self::Child(_)) => vec!["command"],
            (Self::Peer(one), Self::Peer(two)) => {
                differing_keys(&[("peer", one.is_same(two))]).collect()
            }
            (_, Self::InProcess(_)) => vec!["executor"],
            (_, Self::Peer(_)) => vec!["peer"],
        }
    }
}

impl ChildSpec {
    fn changed_keys(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            command,
            args,
            env,
            cwd,
            reaper,
            limits,
            sandbox,
            sandbox_lacks: _,
        } = self;
        let pairs = [
            (
                "command",
                *command == other.command && *reaper == other.reaper,
            ),
            ("args", *args == other.args),
            ("env", *env == other.env),
            ("cwd", *cwd == other.cwd),
            ("limits", *limits == other.limits),
            ("sandbox", *sandbox == other.sandbox),
        ];
        differing_keys(&pairs).collect()
    }
}

impl ExecutorProcessSpec {
    fn changed_keys(&self, other: &Self) -> Vec<&'static str> {
        let Self { executor, server } = self;
        let pairs = [
            ("via", *executor == other.executor),
            ("server", *server == other.server),
        ];
        differing_keys(&pairs).collect()
    }
}

impl RemoteSpec {
    fn changed_keys(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            url,
            transport,
            credentials,
            via,
        } = self;
        let pairs = [
            ("url", *url == other.url),
            ("transport", *transport == other.transport),
            ("via", *via == other.via),
            (
                "headers",
                credentials.digest() == other.credentials.digest(),
            ),
        ];
        differing_keys(&pairs).collect()
    }
}

fn differing_keys(pairs: &[(&'static str, bool)]) -> impl Iterator<Item = &'static str> {
    let different = pairs.iter().filter(|(_, is_same)| !is_same);
    different.map(|(key, _)| *key)
}
