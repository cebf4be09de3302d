//! Contract suite: rules for every engine, as runnable checks.
//!
//! An engine implements [`EngineFactory`], and [`journal_contract!`](crate::journal_contract)
//! generates a test per rule. A rule returns a [`ContractViolation`] instead of panicking, so the
//! suite also runs outside of tests.

pub mod dead_letters;
pub mod dedupe;
pub mod delivery_order;
pub mod durability;
pub mod inspection;
pub mod refusals;
pub mod values;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::time::MonotonicTime;
use bytes::Bytes;

use crate::engine::{
    Journal, JournalError, LaneName, LeaseOrder, LeaseReceipt, LeasedMessage, MessageDraft,
    PublishOutcome, Timestamps,
};

/// Opens journals of an engine for the contract suite.
pub trait EngineFactory: Send + Sync {
    /// Opens the journal: a new journal the first time. A durable engine reopens the same journal
    /// once the previous handle was closed and dropped.
    fn open_journal(&self) -> BoxFuture<'_, Arc<dyn Journal>>;

    /// Returns whether stored data survives a reopen.
    fn is_durable(&self) -> bool;
}

/// Violation of a rule.
#[derive(Debug, thiserror::Error)]
pub enum ContractViolation {
    /// An operation returned an unexpected value.
    #[error("{what}: found {found}, wanted {wanted}")]
    Differs {
        /// Checked property.
        what: String,
        /// Actual value.
        found: String,
        /// Expected value.
        wanted: String,
    },
    /// A required operation failed.
    #[error("it refused what it must do")]
    Failed(#[from] JournalError),
    /// The check itself cannot run.
    #[error("the check cannot be run")]
    Setup(#[from] std::io::Error),
}

/// Result of a rule.
pub type RuleResult = Result<(), ContractViolation>;

/// Runs a rule on a dedicated runtime.
///
/// # Errors
/// The engine violates the rule.
pub fn check_rule<M: EngineFactory>(
    factory: &M,
    rule: impl AsyncFnOnce(&M) -> RuleResult,
) -> RuleResult {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(rule(factory))
}

/// Generates a test per rule; the expression creates a new [`EngineFactory`].
#[macro_export]
macro_rules! journal_contract {
    ($factory:expr) => {
        $crate::journal_contract! { $factory =>
            delivery_order::leased_message_equals_published_draft
            delivery_order::messages_lease_in_publish_order
            delivery_order::strict_lane_waits_for_first_message
            delivery_order::mailbox_leases_messages_concurrently
            delivery_order::expired_lease_goes_to_next_consumer
            delivery_order::nak_keeps_message_position
            delivery_order::lanes_do_not_block_each_other
            delivery_order::publish_with_lease_holds_message
            delivery_order::publish_with_lease_never_overtakes_queued
            delivery_order::message_ids_are_never_reused
            dedupe::same_message_is_stored_once
            dedupe::same_id_other_digest_conflicts
            dedupe::ack_result_is_remembered
            dedupe::completed_message_expires_after_ttl
            dedupe::removed_message_frees_dedupe_id
            dead_letters::dead_letter_does_not_block_lane
            dead_letters::requeued_dead_letter_goes_last
            dead_letters::expired_message_becomes_dead_letter
            dead_letters::expire_is_bounded_per_call
            dead_letters::leased_message_is_not_removed
            inspection::lane_stats_count_messages
            inspection::messages_are_listed_by_page
            values::value_is_last_put
            values::put_requires_expected_revision
            values::keys_are_listed_in_order
            values::watch_sees_changes_under_prefix
            refusals::oversized_input_is_refused
            refusals::lane_message_count_is_bounded
            refusals::closed_journal_refuses_operations
            durability::acknowledged_state_survives_reopen
            durability::leases_are_void_after_reopen
            durability::ids_continue_after_reopen
        }
    };
    ($factory:expr => $($module:ident :: $rule:ident)*) => {
        $(
            #[test]
            fn $rule() {
                let factory = $factory;
                let result = $crate::contract::check_rule(&factory, async |factory| {
                    $crate::contract::$module::$rule(factory).await
                });
                assert!(result.is_ok(), "{result:?}");
            }
        )*
    };
}

/// Compares an actual value with the expected value.
fn expect_equal<T: PartialEq + Debug>(description: &str, actual: &T, expected: &T) -> RuleResult {
    match actual == expected {
        true => Ok(()),
        false => Err(ContractViolation::Differs {
            what: description.to_owned(),
            found: format!("{actual:?}"),
            wanted: format!("{expected:?}"),
        }),
    }
}

/// Requires a condition.
fn expect_true(description: &str, holds: bool) -> RuleResult {
    expect_equal(description, &holds, &true)
}

/// Returns a moment, the same on both clocks.
fn moment_at(ms: u64) -> Timestamps {
    Timestamps {
        now: MonotonicTime(ms),
        unix_ms: 1_000_000_000_000 + ms,
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a draft without expiry; digest and body are derived from the dedupe id.
fn message_draft(lane: &str, dedupe: &str) -> Result<MessageDraft, JournalError> {
    let mut digest = [0; 32];
    for (to, from) in digest.iter_mut().zip(dedupe.bytes()) {
        *to = from;
    }
    Ok(MessageDraft {
        lane: LaneName::new(lane)?,
        dedupe: dedupe.into(),
        digest,
        body: Bytes::from(format!("body of {dedupe}")),
        ttl: None,
        lease: None,
    })
}

/// Publishes messages in order.
async fn publish_all(
    journal: &dyn Journal,
    lane: &str,
    all: &[&str],
    now: Timestamps,
) -> RuleResult {
    for dedupe in all {
        let published = journal.publish(message_draft(lane, dedupe)?, now).await?;
        let is_new = matches!(published, PublishOutcome::Stored { .. });
        expect_true("a new message is stored", is_new)?;
    }
    Ok(())
}

/// Leases messages for a second.
async fn lease_messages(
    journal: &dyn Journal,
    lane: &str,
    order: LeaseOrder,
    max: usize,
    now: Timestamps,
) -> Result<Vec<LeasedMessage>, JournalError> {
    let lane = LaneName::new(lane)?;
    journal.lease(&lane, order, max, ms(1000), now).await
}

/// Leases the first message of a lane and checks its dedupe id.
async fn lease_first(
    journal: &dyn Journal,
    lane: &str,
    dedupe: &str,
    now: Timestamps,
) -> Result<LeaseReceipt, ContractViolation> {
    let leased = lease_messages(journal, lane, LeaseOrder::Strict, 1, now).await?;
    expect_equal(
        "the first of the lane",
        &dedupe_ids(&leased),
        &vec![dedupe.to_owned()],
    )?;
    let receipt = leased.first().map(|one| one.receipt);
    receipt.ok_or(ContractViolation::Failed(JournalError::NotFound))
}

/// Checks that a lane leases nothing.
async fn expect_nothing_leased(
    journal: &dyn Journal,
    lane: &str,
    order: LeaseOrder,
    now: Timestamps,
) -> RuleResult {
    let leased = lease_messages(journal, lane, order, 9, now).await?;
    expect_equal("what a lane gives", &dedupe_ids(&leased), &Vec::new())
}

fn dedupe_ids(leased: &[LeasedMessage]) -> Vec<String> {
    leased.iter().map(|one| one.dedupe.to_string()).collect()
}
