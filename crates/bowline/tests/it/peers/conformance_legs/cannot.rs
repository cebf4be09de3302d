//! What a leg cannot have, each with the sentence that forbids it, and the page that says so.

use std::fmt::Write as _;

use crate::peers::conformance::{Cannot, Wire};

/// A client of one era and a server of one era, with the gateway in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) client: Wire,
    pub(super) server: Wire,
}

impl Leg {
    pub(super) const LEGACY_TO_LEGACY: Self = Self::of(Wire::Legacy, Wire::Legacy);
    pub(super) const LEGACY_TO_MODERN: Self = Self::of(Wire::Legacy, Wire::Modern);
    pub(super) const MODERN_TO_LEGACY: Self = Self::of(Wire::Modern, Wire::Legacy);
    pub(super) const MODERN_TO_MODERN: Self = Self::of(Wire::Modern, Wire::Modern);

    const fn of(client: Wire, server: Wire) -> Self {
        Self { client, server }
    }

    /// What cannot pass here.
    pub(super) fn cannot(self) -> Vec<Cannot> {
        let rows = self.rows();
        rows.map(|row| Cannot {
            scenario: row.scenario,
            checks: row.checks,
        })
        .collect()
    }

    /// Scenarios of an extension that are asked for only between ends of one era.
    pub(super) fn leaves_out(self, scenario: &str) -> bool {
        self.client != self.server && scenario.starts_with("tasks-")
    }

    fn rows(self) -> impl Iterator<Item = &'static Row> {
        TABLE.iter().filter(move |row| row.leg == self)
    }
}

/// One thing that cannot be.
struct Row {
    leg: Leg,
    scenario: &'static str,
    checks: &'static [&'static str],
    /// The sentence.
    sentence: &'static str,
    /// Where it stands.
    place: &'static str,
    /// What follows from it here.
    so: &'static str,
}

const TABLE: [Row; 1] = [Row {
    leg: Leg::MODERN_TO_LEGACY,
    scenario: "input-required-result-ignore-extra-params",
    checks: &["sep-2322-ignore-unexpected-params"],
    sentence: "Result responses MUST include the same ID as the request they correspond to.",
    place: "2025-11-25 and 2026-07-28, Overview, Result Responses",
    so: "The scenario answers a question in the first request, before anything was asked. A \
         legacy server asks by a request of its own, and there is no answer to a request that \
         it has not sent: it is asked, the answer that came too early is left aside, and the \
         client is asked as if it had said nothing. The check is a warning of the suite, not a \
         failure.",
}];

/// The page `docs/conformance.md`.
pub(super) fn page() -> String {
    let mut page = String::from(HEAD);
    for (leg, client, server) in [
        (Leg::LEGACY_TO_LEGACY, "legacy", "legacy"),
        (Leg::LEGACY_TO_MODERN, "legacy", "modern"),
        (Leg::MODERN_TO_LEGACY, "modern", "legacy"),
        (Leg::MODERN_TO_MODERN, "modern", "modern"),
    ] {
        let required = leg.client.required();
        let spoiled = required
            .iter()
            .filter(|scenario| leg.rows().any(|row| row.scenario == **scenario))
            .count();
        let others = leg.client.not_scored().iter();
        let others = others.filter(|scenario| !leg.leaves_out(scenario)).count();
        let _ = writeln!(
            page,
            "| {client}, {} | {server}, {} | {} of {} | {others} of {} |",
            leg.client.revision(),
            leg.server.revision(),
            required.len() - spoiled,
            required.len(),
            leg.client.not_scored().len(),
        );
    }
    page.push_str(BODY);
    for row in &TABLE {
        let _ = writeln!(
            page,
            "- **{}** ({} client, {} server; checks: {}). \u{201c}{}\u{201d} ({}). {}",
            row.scenario,
            row.leg.client.revision(),
            row.leg.server.revision(),
            row.checks.join(", "),
            row.sentence,
            row.place,
            row.so,
        );
    }
    page
}

const HEAD: &str = "\
# Conformance

<!-- Written from the table in crates/bowline/tests/it/peers/conformance_legs/cannot.rs by
     `BOWLINE_WRITE_PAGES=1 cargo test -p bowline --test it page_of_conformance`; do not edit. -->

The official suite (`@modelcontextprotocol/conformance`, 0.2.0-alpha.12) runs **through the
gateway**, with clients of either era in front of it and `bowline fixture` of either era behind it:
the fixture of a leg speaks one era only, so whatever passes was translated. Required scenarios are
those of `--requirements` with the client's revision; the suite runs others besides, which it does
not score.

| client | server | required | not scored |
|---|---|---|---|
";

const BODY: &str = "
Each leg runs over stdio and over streamable HTTP. Those between ends of one era run once more with
the server on an executor, with its requests performed by an executor, and with the server offered by
a worker. A required scenario without a single passed check fails the test, and so does an entry
below that passes.

Scenarios of the tasks extension are asked for where both ends are modern. One of them,
`tasks-status-notifications`, is a placeholder of the suite that checks nothing.

## What a leg cannot have

";
