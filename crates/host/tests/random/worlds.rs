//! Random servers from a seed: failures and specs.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::Effect;
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, ToolBehaviour, annotated_tool, server_spec,
    tool_definition,
};
use fastrand::Rng;

pub(crate) const SERVERS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Tools by annotation: `r` read-only, `i` idempotent, `w` none.
pub(crate) const TOOLS: [&str; 6] = ["r0", "r1", "i0", "w0", "w1", "w2"];

/// True if the host enforces limits of calls and starts.
pub(crate) const LIMITED: bool = true;

/// The predominant failure of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    Mixed,
    Crash,
    Hang,
    Flap,
    Slow,
    Late,
}

impl Theme {
    pub(crate) const fn from_seed(seed: u64) -> Self {
        match seed % 6 {
            0 => Self::Mixed,
            1 => Self::Crash,
            2 => Self::Hang,
            3 => Self::Flap,
            4 => Self::Slow,
            _ => Self::Late,
        }
    }
}

/// Random source of a seed.
#[derive(Debug)]
pub(crate) struct Draw {
    pub(crate) rng: Rng,
    pub(crate) theme: Theme,
    /// Maximum delay in milliseconds.
    pub(crate) span_ms: u64,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let span_ms = [500, 4_000, 4_000, 40_000][rng.usize(..4)];
        let theme = Theme::from_seed(seed);
        Self {
            rng,
            theme,
            span_ms,
        }
    }

    pub(crate) fn fork(&mut self) -> Self {
        Self {
            rng: self.rng.fork(),
            theme: self.theme,
            span_ms: self.span_ms,
        }
    }

    pub(crate) fn random_delay(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(..self.span_ms))
    }

    fn duration_between(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from_ms..to_ms))
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.rng.u32(..count) == 0
    }

    pub(crate) fn random_spec(&mut self, server: &str) -> ServerSpec {
        let calls_max = if LIMITED && self.one_in(3) {
            self.rng.usize(1..4)
        } else {
            256
        };
        ServerSpec {
            lazy: self.rng.bool(),
            start_timeout: self.duration_between(100, 3_000),
            call_timeout: self.duration_between(50, 5_000),
            drain_timeout: self.duration_between(1, 2_000),
            idle_stop: self.one_in(3).then(|| self.duration_between(200, 3_000)),
            ping: None,
            calls_max,
            queue_max: self.rng.usize(..5),
            restart: RestartPolicy {
                restarts_max: self.rng.u32(..6),
                window: self.duration_between(100, 20_000),
            },
            backoff: Backoff {
                base: self.duration_between(1, 1_000),
                cap: Duration::from_secs(5),
            },
            breaker: BreakerPolicy {
                failures_max: self.rng.u32(1..6),
                cooldown: self.duration_between(1, 1_500),
            },
            tools: self.random_rules(),
            ..server_spec(server)
        }
    }

    fn random_rules(&mut self) -> BTreeMap<String, ToolRule> {
        let mut rules = BTreeMap::new();
        for tool in TOOLS {
            if self.one_in(8) {
                let effects = [None, Some(Effect::Read), Some(Effect::Write)];
                let rule = ToolRule {
                    effect: effects[self.rng.usize(..3)],
                    idempotent: [None, Some(true), Some(false)][self.rng.usize(..3)],
                    timeout: self.rng.bool().then(|| self.duration_between(50, 5_000)),
                    ..ToolRule::default()
                };
                rules.insert(tool.to_owned(), rule);
            }
        }
        rules
    }

    pub(crate) fn random_script(&mut self) -> ServerScript {
        let first = ServerScript::always(self.random_generation());
        (0..self.rng.usize(..6)).fold(first, |script, _| script.then(self.random_generation()))
    }

    pub(crate) fn random_generation(&mut self) -> GenerationScript {
        let offered: Vec<_> = TOOLS.into_iter().filter(|_| !self.one_in(6)).collect();
        let shown: Vec<_> = offered
            .iter()
            .map(|tool| random_tool_definition(tool))
            .collect();
        let mut life = GenerationScript::with_definitions(&shown)
            .with_end_delay(self.duration_between(0, 400))
            .with_list_delay(self.duration_between(0, 400));
        for tool in offered {
            life = life.with_behaviour(tool, self.random_act());
        }
        match self.theme {
            Theme::Mixed | Theme::Late => match self.rng.u8(..16) {
                0 => GenerationScript::failing_start("no luck"),
                1 => life.hang_start(&ReleaseGate::new_closed()),
                2 => life.exit_on_list(),
                3 => life.exit_after(self.random_delay()),
                4 => life.with_start_delay(self.random_delay()),
                _ => life,
            },
            Theme::Crash => match self.rng.u8(..8) {
                0 => GenerationScript::failing_start("crashed"),
                1 => life.exit_on_list(),
                2 => life.exit_after(self.random_delay()),
                _ => life,
            },
            Theme::Hang => match self.rng.u8(..6) {
                0 => life.hang_start(&ReleaseGate::new_closed()),
                1 => life.with_list_delay(Duration::from_secs(3_600)),
                _ => life,
            },
            Theme::Flap => {
                let most = self.span_ms.min(3_000);
                life.exit_after(self.duration_between(0, most))
            }
            Theme::Slow => {
                let life = life.with_list_delay(self.duration_between(0, 3_000));
                let start = self.duration_between(0, 3_000);
                life.with_start_delay(start)
            }
        }
    }

    fn random_act(&mut self) -> ToolBehaviour {
        let faulty = match self.theme {
            Theme::Mixed => self.rng.bool(),
            Theme::Flap => self.one_in(4),
            Theme::Crash | Theme::Hang | Theme::Slow | Theme::Late => !self.one_in(3),
        };
        if !faulty {
            return match self.rng.u8(..6) {
                0 => ToolBehaviour::RpcError,
                1 => ToolBehaviour::ToolError,
                2 => ToolBehaviour::Progress(2),
                3 => ToolBehaviour::RespondAfter(self.duration_between(1, 300)),
                _ => ToolBehaviour::Respond,
            };
        }
        match (self.theme, self.rng.u8(..8)) {
            (Theme::Crash, 0..=3) => ToolBehaviour::Exit,
            (Theme::Crash, 4..=5) | (_, 0) => ToolBehaviour::ExitUnread,
            (Theme::Hang, 1..=6) | (_, 1) => ToolBehaviour::BlockOn(ReleaseGate::new_closed()),
            (Theme::Slow, 2..=6) | (_, 2..=3) => {
                ToolBehaviour::RespondAfter(self.duration_between(1, 6_000))
            }
            (Theme::Late, 4..=7) | (_, 4) => {
                ToolBehaviour::RespondLate(self.duration_between(40, 8_000))
            }
            (_, 5) => ToolBehaviour::CloseLink,
            (_, 6) => ToolBehaviour::RespondGarbage,
            _ => ToolBehaviour::Exit,
        }
    }
}

fn random_tool_definition(tool: &str) -> String {
    match tool.as_bytes().first() {
        Some(b'r') => annotated_tool(tool, "{\"readOnlyHint\":true}"),
        Some(b'i') => annotated_tool(tool, "{\"idempotentHint\":true}"),
        _ => tool_definition(tool),
    }
}

/// True if a call may be repeated after an unknown outcome: configuration overrides annotations.
pub(crate) fn is_repeatable(spec: &ServerSpec, tool: &str) -> bool {
    let rule = spec.tools.get(tool).cloned().unwrap_or_default();
    let reads = match rule.effect {
        Some(effect) => effect == Effect::Read,
        None => tool.starts_with('r'),
    };
    reads || rule.idempotent.unwrap_or_else(|| tool.starts_with('i'))
}
