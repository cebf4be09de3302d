//! Exemptions of an era pair, each with the normative sentence, and the generated page.

use std::fmt::Write as _;

use crate::peers::conformance::{Exemption, ProtocolEra};

/// A client and a server, each of one era, with the gateway between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EraPair {
    pub(super) client: ProtocolEra,
    pub(super) server: ProtocolEra,
}

impl EraPair {
    pub(super) const LEGACY_TO_LEGACY: Self = Self::new(ProtocolEra::Legacy, ProtocolEra::Legacy);
    pub(super) const LEGACY_TO_MODERN: Self = Self::new(ProtocolEra::Legacy, ProtocolEra::Modern);
    pub(super) const MODERN_TO_LEGACY: Self = Self::new(ProtocolEra::Modern, ProtocolEra::Legacy);
    pub(super) const MODERN_TO_MODERN: Self = Self::new(ProtocolEra::Modern, ProtocolEra::Modern);

    const fn new(client: ProtocolEra, server: ProtocolEra) -> Self {
        Self { client, server }
    }

    /// The exempt checks of this pair.
    pub(super) fn exemptions(self) -> Vec<Exemption> {
        let rows = self.exemption_rows();
        rows.map(|row| Exemption {
            scenario: row.scenario,
            checks: row.checks,
        })
        .collect()
    }

    /// Scenarios of an extension that apply only between ends of one era.
    pub(super) fn is_skipped(self, scenario: &str) -> bool {
        self.client != self.server && scenario.starts_with("tasks-")
    }

    fn exemption_rows(self) -> impl Iterator<Item = &'static ExemptionRow> {
        TABLE.iter().filter(move |row| row.eras == self)
    }
}

/// An exemption.
struct ExemptionRow {
    eras: EraPair,
    scenario: &'static str,
    checks: &'static [&'static str],
    /// The normative sentence.
    sentence: &'static str,
    /// The location in the specification.
    location: &'static str,
    /// The consequence here.
    consequence: &'static str,
}

const TABLE: [ExemptionRow; 1] = [ExemptionRow {
    eras: EraPair::MODERN_TO_LEGACY,
    scenario: "input-required-result-ignore-extra-params",
    checks: &["sep-2322-ignore-unexpected-params"],
    sentence: "Result responses MUST include the same ID as the request they correspond to.",
    location: "2025-11-25 and 2026-07-28, Overview, Result Responses",
    consequence: "The scenario answers a question in the first request, before anything was asked. A \
         legacy server asks by a request of its own, and there is no answer to a request that \
         it has not sent: it is asked, the answer that came too early is left aside, and the \
         client is asked as if it had said nothing. The check is a warning of the suite, not a \
         failure.",
}];

/// The page `docs/conformance.md`.
pub(super) fn conformance_page() -> String {
    let mut page = String::from(HEAD);
    for (leg, client, server) in [
        (EraPair::LEGACY_TO_LEGACY, "legacy", "legacy"),
        (EraPair::LEGACY_TO_MODERN, "legacy", "modern"),
        (EraPair::MODERN_TO_LEGACY, "modern", "legacy"),
        (EraPair::MODERN_TO_MODERN, "modern", "modern"),
    ] {
        let required = leg.client.required_suites();
        let spoiled = required
            .iter()
            .filter(|scenario| leg.exemption_rows().any(|row| row.scenario == **scenario))
            .count();
        let others = leg.client.unscored_scenarios().iter();
        let others = others.filter(|scenario| !leg.is_skipped(scenario)).count();
        let _ = writeln!(
            page,
            "| {client}, {} | {server}, {} | {} of {} | {others} of {} |",
            leg.client.revision(),
            leg.server.revision(),
            required.len() - spoiled,
            required.len(),
            leg.client.unscored_scenarios().len(),
        );
    }
    page.push_str(BODY);
    for row in &TABLE {
        let _ = writeln!(
            page,
            "- **{}** ({} client, {} server; checks: {}). \u{201c}{}\u{201d} ({}). {}",
            row.scenario,
            row.eras.client.revision(),
            row.eras.server.revision(),
            row.checks.join(", "),
            row.sentence,
            row.location,
            row.consequence,
        );
    }
    page
}

const HEAD: &str = "\
# Conformance

<!-- Written from the table in crates/bowline/tests/it/peers/conformance_legs/exemptions.rs by
     `BOWLINE_WRITE_PAGES=1 cargo test -p bowline --test it page_of_conformance`; do not edit. -->

The official suite (`@modelcontextprotocol/conformance`, 0.2.0-alpha.12) runs **through the
gateway**, with clients of either era in front of it and `bowline-fixture` of either era behind it:
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
