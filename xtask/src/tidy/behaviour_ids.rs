//! Ids that `docs/behaviours.md` must contain: promised behaviours and faults to avoid.

/// Promised behaviours: broker (B), supervised host (H), HTTP edge (R), executor (X), stdio (S),
/// the two eras (E), finding tools (F).
const BEHAVIOUR_IDS: &str = "
    B1 B2 B3 B4 B5 B6 B17 B18 B19 B20 B21 B22 B23 B24 B25 B27 B28 B29 B30 B31 B32 B33 B35 B36 B37
    B38
    H1 H2 H3 H4 H7 H8 H10 H11 H12 H13 H14 H15 H16 H17 H18 H19 H20 H21 H22 H23 H24
    R1 R2 R3 R4 R5 R6 R7 R8 R9 R10 R11 R12 R13 R14 R15 R16 R17 R18 R19 R20 R20a R21
    X0 X1 X2 X6 X7 X8 X9 X10 X11 X12 X13 X14 X15 X16
    S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12 S13 S14 S15
    E1 E2 E3 E4 E5 E6 E7 E8 E9 E10 E11 E12 E13 E14 E15 E16 E17 E18 E19 E20 E21 E22 E23 E24
    F1 F2 F3 F4 F5";

/// Known fault families, each with its last number: BW1 to BW17, and so on.
const FAULT_FAMILIES: &[(&str, usize)] =
    &[("BW", 17), ("HW", 17), ("RW", 18), ("XW", 12), ("SW", 14)];

/// Tests of the broker (1.4), the supervised host (2.4), the HTTP edge (3.4), the executor (4.4)
/// and the stdio client (5.4), and regressions derived from the faults (6.6).
const TEST_IDS: &str = "
    1.4.1 1.4.2 1.4.3 1.4.4 1.4.5 1.4.6 1.4.7 1.4.8
    2.4.1 2.4.2 2.4.3 2.4.4 2.4.5 2.4.6 2.4.7 2.4.8 2.4.9 2.4.10 2.4.11
    3.4.1 3.4.2 3.4.3 3.4.4 3.4.5 3.4.6 3.4.7 3.4.8 3.4.9 3.4.10
    4.4.1 4.4.2 4.4.3 4.4.4 4.4.5 4.4.6 4.4.7 4.4.8
    5.4.1 5.4.2 5.4.3 5.4.4 5.4.5 5.4.6
    6.6.retry-generation 6.6.stop-refuses 6.6.tool-errors 6.6.one-restart 6.6.one-probe
    6.6.private-cache 6.6.forged-role 6.6.redelivery 6.6.expiry 6.6.full-mailbox 6.6.half-open-tcp
    6.6.colliding-id 6.6.string-id 6.6.partial-write 6.6.long-line 6.6.invalid-utf8 6.6.grandchild
    6.6.stream-drop 6.6.disconnect-cause 6.6.sse-answer 6.6.next-cursor 6.6.list-401 6.6.first-key
    6.6.replay-429 6.6.replay-is-error 6.6.lane-order 6.6.disk-full 6.6.origin-host
    6.6.path-traversal 6.6.name-collisions";

/// Security tests: `sec_01` to `sec_50`.
const ATTACKS_MAX: usize = 50;

/// Returns every id that must have a row.
pub(super) fn required_ids() -> Vec<String> {
    let words = [BEHAVIOUR_IDS, TEST_IDS]
        .into_iter()
        .flat_map(str::split_whitespace)
        .map(str::to_owned);
    let faults = FAULT_FAMILIES
        .iter()
        .flat_map(|(family, last)| (1..=*last).map(move |number| format!("{family}{number}")));
    let attacks = (1..=ATTACKS_MAX).map(|number| format!("sec_{number:02}"));
    words.chain(faults).chain(attacks).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique() {
        let all = required_ids();
        let unique: BTreeSet<&String> = all.iter().collect();
        assert_eq!(all.len(), unique.len());
        assert_eq!(all.len(), 98 + 29 + 78 + 73 + 50);
    }
}
