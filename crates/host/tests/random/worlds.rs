//! What a seed makes of servers: how they fail, and what the host is told about them.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::BreakerPolicy;
use bowline_core::call::Effect;
use bowline_core::supervision::RestartPolicy;
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_sim::{Act, Gate, Generation, Script, annotated, definition, spec};
use fastrand::Rng;

pub(crate) const SERVERS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Tools, and what a server says of each: `r` only read, `i` may be repeated, `w` say nothing.
pub(crate) const TOOLS: [&str; 6] = ["r0", "r1", "i0", "w0", "w1", "w2"];

/// Whether the host holds to limits of calls and starts.
pub(crate) const LIMITED: bool = true;

/// How the servers of a world mostly fail.
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
    pub(crate) const fn of(seed: u64) -> Self {
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

/// One seed's way to draw servers.
#[derive(Debug)]
pub(crate) struct Draw {
    pub(crate) rng: Rng,
    pub(crate) theme: Theme,
    /// How long anything may be put off, in milliseconds.
    pub(crate) span_ms: u64,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let span_ms = [500, 4_000, 4_000, 40_000][rng.usize(..4)];
        let theme = Theme::of(seed);
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

    pub(crate) fn delay(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(..self.span_ms))
    }

    fn between(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from_ms..to_ms))
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.rng.u32(..count) == 0
    }

    pub(crate) fn spec(&mut self, server: &str) -> ServerSpec {
        let calls_max = if LIMITED && self.one_in(3) {
            self.rng.usize(1..4)
        } else {
            256
        };
        ServerSpec {
            lazy: self.rng.bool(),
            start_timeout: self.between(100, 3_000),
            call_timeout: self.between(50, 5_000),
            drain_timeout: self.between(1, 2_000),
            idle_stop: self.one_in(3).then(|| self.between(200, 3_000)),
            ping: None,
            calls_max,
            queue_max: self.rng.usize(..5),
            restart: RestartPolicy {
                restarts_max: self.rng.u32(..6),
                window: self.between(100, 20_000),
            },
            backoff: Backoff {
                base: self.between(1, 1_000),
                cap: Duration::from_secs(5),
            },
            breaker: BreakerPolicy {
                failures_max: self.rng.u32(1..6),
                rest: self.between(1, 1_500),
            },
            tools: self.rules(),
            ..spec(server)
        }
    }

    fn rules(&mut self) -> BTreeMap<String, ToolRule> {
        let mut rules = BTreeMap::new();
        for tool in TOOLS {
            if self.one_in(8) {
                let effects = [None, Some(Effect::Read), Some(Effect::Write)];
                let rule = ToolRule {
                    effect: effects[self.rng.usize(..3)],
                    idempotent: [None, Some(true), Some(false)][self.rng.usize(..3)],
                    timeout: self.rng.bool().then(|| self.between(50, 5_000)),
                    ..ToolRule::default()
                };
                rules.insert(tool.to_owned(), rule);
            }
        }
        rules
    }

    pub(crate) fn script(&mut self) -> Script {
        let first = Script::always(self.generation());
        (0..self.rng.usize(..6)).fold(first, |script, _| script.then(self.generation()))
    }

    pub(crate) fn generation(&mut self) -> Generation {
        let offered: Vec<_> = TOOLS.into_iter().filter(|_| !self.one_in(6)).collect();
        let shown: Vec<_> = offered.iter().map(|tool| defined(tool)).collect();
        let mut life = Generation::definitions(&shown)
            .end_takes(self.between(0, 400))
            .list_takes(self.between(0, 400));
        for tool in offered {
            life = life.act(tool, self.act());
        }
        match self.theme {
            Theme::Mixed | Theme::Late => match self.rng.u8(..16) {
                0 => Generation::fails("no luck"),
                1 => life.hangs(&Gate::closed()),
                2 => life.dies_listing(),
                3 => life.dies_after(self.delay()),
                4 => life.start_takes(self.delay()),
                _ => life,
            },
            Theme::Crash => match self.rng.u8(..8) {
                0 => Generation::fails("crashed"),
                1 => life.dies_listing(),
                2 => life.dies_after(self.delay()),
                _ => life,
            },
            Theme::Hang => match self.rng.u8(..6) {
                0 => life.hangs(&Gate::closed()),
                1 => life.list_takes(Duration::from_secs(3_600)),
                _ => life,
            },
            Theme::Flap => {
                let most = self.span_ms.min(3_000);
                life.dies_after(self.between(0, most))
            }
            Theme::Slow => {
                let life = life.list_takes(self.between(0, 3_000));
                let start = self.between(0, 3_000);
                life.start_takes(start)
            }
        }
    }

    fn act(&mut self) -> Act {
        let faulty = match self.theme {
            Theme::Mixed => self.rng.bool(),
            Theme::Flap => self.one_in(4),
            Theme::Crash | Theme::Hang | Theme::Slow | Theme::Late => !self.one_in(3),
        };
        if !faulty {
            return match self.rng.u8(..6) {
                0 => Act::RpcError,
                1 => Act::ToolError,
                2 => Act::Progress(2),
                3 => Act::AnswersAfter(self.between(1, 300)),
                _ => Act::Answers,
            };
        }
        match (self.theme, self.rng.u8(..8)) {
            (Theme::Crash, 0..=3) => Act::Dies,
            (Theme::Crash, 4..=5) | (_, 0) => Act::DiesUnread,
            (Theme::Hang, 1..=6) | (_, 1) => Act::Hangs(Gate::closed()),
            (Theme::Slow, 2..=6) | (_, 2..=3) => Act::AnswersAfter(self.between(1, 6_000)),
            (Theme::Late, 4..=7) | (_, 4) => Act::AnswersLate(self.between(40, 8_000)),
            (_, 5) => Act::Closes,
            (_, 6) => Act::Garbles,
            _ => Act::Dies,
        }
    }
}

fn defined(tool: &str) -> String {
    match tool.as_bytes().first() {
        Some(b'r') => annotated(tool, "{\"readOnlyHint\":true}"),
        Some(b'i') => annotated(tool, "{\"idempotentHint\":true}"),
        _ => definition(tool),
    }
}

/// Whether a call of the tool may be made again after it may have run: what a person said comes
/// before what the server says.
pub(crate) fn is_repeatable(spec: &ServerSpec, tool: &str) -> bool {
    let rule = spec.tools.get(tool).cloned().unwrap_or_default();
    let reads = match rule.effect {
        Some(effect) => effect == Effect::Read,
        None => tool.starts_with('r'),
    };
    reads || rule.idempotent.unwrap_or_else(|| tool.starts_with('i'))
}
