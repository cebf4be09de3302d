//! Performance goals, and whether a run met them.

use serde_json::{Value, json};

/// One goal: a limit on a figure.
#[derive(Debug)]
pub(super) struct BenchGoal {
    /// Name of the figure in a run's report.
    pub(super) name: &'static str,
    /// Meaning of the figure, for the table.
    pub(super) description: &'static str,
    pub(super) limit: GoalLimit,
    pub(super) unit: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum GoalLimit {
    AtMost(f64),
    AtLeast(f64),
    Below(f64),
}

use GoalLimit::{AtLeast, AtMost, Below};

pub(super) const GOALS: &[BenchGoal] = &[
    new_goal(
        "gates_us",
        "call path: added time per call, in process",
        AtMost(2.0),
        "us",
    ),
    new_goal(
        "gates_instructions",
        "call path: added instructions per call",
        AtMost(6_000.0),
        "ir",
    ),
    new_goal(
        "rules_us",
        "call path: added by role, budget, rate and cache miss",
        AtMost(2.0),
        "us",
    ),
    new_goal(
        "rules_kept_us",
        "call path: the same, with the response stored in the cache",
        AtMost(4.0),
        "us",
    ),
    new_goal(
        "hit_ratio",
        "call path: cache hit by live call over pipes",
        Below(1.0 / 3.0),
        "x",
    ),
    new_goal(
        "to_modern_ratio",
        "eras: session client to modern server, by legacy server",
        AtMost(2.0),
        "x",
    ),
    new_goal(
        "to_legacy_ratio",
        "eras: modern client to legacy server, by modern server",
        AtMost(2.0),
        "x",
    ),
    new_goal(
        "to_modern_instructions",
        "eras: the first ratio in instructions",
        AtMost(2.0),
        "x",
    ),
    new_goal(
        "to_legacy_instructions",
        "eras: the second ratio in instructions",
        AtMost(2.0),
        "x",
    ),
    new_goal(
        "find_us",
        "`find_tools` over 2,000 tools with a role, in process",
        Below(2_000.0),
        "us",
    ),
    new_goal(
        "flat_rules",
        "call path: 10,000 tools and 1,000 roles, by few",
        AtMost(1.1),
        "x",
    ),
    new_goal(
        "flat_rules_instructions",
        "call path: the same ratio in instructions",
        AtMost(1.1),
        "x",
    ),
    new_goal(
        "redaction_ns_kib",
        "redaction: a KiB of a result without secrets, 16 secrets",
        AtMost(1_000.0),
        "ns",
    ),
    new_goal(
        "sandbox_start_ms",
        "sandbox: added to the start of a server, named ports",
        AtMost(10.0),
        "ms",
    ),
    new_goal(
        "sandbox_port_start_ms",
        "sandbox: the same, all ports but the gateway's own",
        AtMost(10.0),
        "ms",
    ),
    new_goal(
        "journal_ops",
        "journal: durable publishes and acks, 64 producers",
        AtLeast(20_000.0),
        "/s",
    ),
    new_goal(
        "journal_p99_ms",
        "journal: p99 of a publish, 64 producers",
        AtMost(25.0),
        "ms",
    ),
    new_goal(
        "journal_to_disk",
        "journal: one producer, by append and sync of the disk",
        AtMost(2.0),
        "x",
    ),
    new_goal(
        "journal_open_ms",
        "journal: open with 100,000 live rows after kill -9",
        AtMost(250.0),
        "ms",
    ),
    new_goal(
        "journal_churn_mb",
        "journal: on disk after 1,000,000 messages, 1,000 live",
        AtMost(10.0),
        "MB",
    ),
    new_goal(
        "journal_syncs",
        "journal: syncs per commit, checkpoints included",
        AtMost(1.1),
        "x",
    ),
    new_goal(
        "cpu_ratio_c16",
        "CPU per call against the bare bridge, 16 callers",
        AtMost(1.4),
        "x",
    ),
    new_goal(
        "cpu_ratio_c64",
        "CPU per call against the bare bridge, 64 callers",
        AtMost(1.4),
        "x",
    ),
    new_goal(
        "http_nginx_c16",
        "HTTP: CPU per call against nginx, 16 callers",
        AtMost(1.6),
        "x",
    ),
    new_goal(
        "http_nginx_c64",
        "HTTP: CPU per call against nginx, 64 callers",
        AtMost(1.6),
        "x",
    ),
    new_goal(
        "http_relay_c256",
        "HTTP: CPU per call against the relay, 256 callers",
        AtMost(1.3),
        "x",
    ),
    new_goal(
        "http_kept",
        "HTTP: loss of req/s from 16 to 256 callers, by the relay's",
        AtMost(1.0),
        "x",
    ),
    new_goal(
        "list_ratio",
        "list of 1,000 tools of 10 servers against direct",
        AtMost(2.0),
        "x",
    ),
    new_goal(
        "setups",
        "session set-ups, 16 callers",
        AtLeast(10_000.0),
        "/s",
    ),
    new_goal(
        "idle_mib",
        "memory of an idle gateway with one server",
        Below(20.0),
        "MiB",
    ),
    new_goal(
        "session_kib",
        "memory per idle session, connections shared",
        AtMost(6.0),
        "KiB",
    ),
    new_goal(
        "session_own_kib",
        "memory per idle session with its own connection",
        AtMost(12.0),
        "KiB",
    ),
    new_goal(
        "first_call_ms",
        "start: time to the first correct response",
        Below(40.0),
        "ms",
    ),
    new_goal(
        "reload_ms",
        "reload: 200 servers, request to response",
        Below(100.0),
        "ms",
    ),
    new_goal(
        "broker_live_c64",
        "broker: a live call through a worker, 64 callers",
        AtLeast(20_000.0),
        "/s",
    ),
    new_goal(
        "broker_live_ratio",
        "broker: local calls/s by calls/s through a worker, 64",
        AtMost(3.0),
        "x",
    ),
    new_goal(
        "broker_peer_kib",
        "broker: memory per idle peer, 5,000 of them",
        AtMost(20.0),
        "KiB",
    ),
    new_goal(
        "executor_relay",
        "executor: throughput of a large body, by a WebSocket relay",
        AtLeast(0.6),
        "x",
    ),
    new_goal(
        "executor_codex",
        "executor: the same, by a Codex exec-server",
        AtLeast(1.0),
        "x",
    ),
    new_goal(
        "executor_p50",
        "executor: added to a small response, by the relay's",
        AtMost(2.0),
        "x",
    ),
    new_goal(
        "flat_tools",
        "CPU per call with 1,000 tools against 10",
        AtMost(1.1),
        "x",
    ),
    new_goal(
        "flat_sessions",
        "CPU per call with 1,000 sessions against 1",
        AtMost(1.1),
        "x",
    ),
];

const fn new_goal(
    name: &'static str,
    says: &'static str,
    limit: GoalLimit,
    unit: &'static str,
) -> BenchGoal {
    BenchGoal {
        name,
        description: says,
        limit,
        unit,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoalVerdict {
    Hit,
    Miss,
    NotMeasured,
}

impl BenchGoal {
    pub(super) fn verdict(&self, measured: Option<f64>) -> GoalVerdict {
        let Some(figure) = measured.filter(|figure| figure.is_finite()) else {
            return GoalVerdict::NotMeasured;
        };
        let hit = match self.limit {
            AtMost(limit) => figure <= limit,
            AtLeast(limit) => figure >= limit,
            Below(limit) => figure < limit,
        };
        if hit {
            GoalVerdict::Hit
        } else {
            GoalVerdict::Miss
        }
    }

    /// `<= 1.6 x`
    pub(super) fn target_text(&self) -> String {
        match self.limit {
            AtMost(limit) => format!("<= {limit} {}", self.unit),
            AtLeast(limit) => format!(">= {limit} {}", self.unit),
            Below(limit) => format!("< {limit} {}", self.unit),
        }
    }

    pub(super) fn to_json(&self, measured: Option<f64>) -> Value {
        json!({
            "name": self.name,
            "says": self.description,
            "measured": measured,
            "target": self.target_text(),
            "verdict": self.verdict(measured).as_str(),
        })
    }
}

impl GoalVerdict {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "MISS",
            Self::NotMeasured => "not measured",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_value_meets_at_most_not_below() {
        let at_most = new_goal("a", "a", AtMost(1.6), "x");
        assert_eq!(at_most.verdict(Some(1.6)), GoalVerdict::Hit);
        assert_eq!(at_most.verdict(Some(1.61)), GoalVerdict::Miss);
        assert_eq!(
            new_goal("b", "b", Below(20.0), "MiB").verdict(Some(20.0)),
            GoalVerdict::Miss
        );
    }

    #[test]
    fn unmeasured_goal_has_no_verdict() {
        for measured in [None, Some(f64::NAN)] {
            assert_eq!(
                new_goal("a", "a", AtMost(1.6), "x").verdict(measured),
                GoalVerdict::NotMeasured
            );
        }
    }
}
