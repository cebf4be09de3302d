//! The rules that every engine keeps, as checks that any engine can be put to.
//!
//! An engine says how it is opened ([`Maker`]), and [`journal_contract!`](crate::journal_contract)
//! makes a test of every rule. A rule returns a [`Breach`] instead of panicking, so that it can be
//! run outside of tests too.

pub mod dead;
pub mod dedupe;
pub mod lasting;
pub mod limits;
pub mod order;
pub mod shown;
pub mod values;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::Now;
use bytes::Bytes;

use crate::engine::{
    At, BoxFuture, Delivery, Draft, Journal, JournalError, Lane, Order, Published, Receipt,
};

/// Says how an engine is opened.
pub trait Maker: Send + Sync {
    /// Opens the journal: a new one the first time, and where it is kept the same one later, when
    /// the one before was closed and dropped.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Journal>>;

    /// Whether what is stored is there when it is opened again.
    fn is_kept(&self) -> bool;
}

/// A rule that an engine does not keep.
#[derive(Debug, thiserror::Error)]
pub enum Breach {
    /// It answered something else.
    #[error("{what}: found {found}, wanted {wanted}")]
    Differs {
        /// What was asked.
        what: String,
        /// What it answered.
        found: String,
        /// What it should have answered.
        wanted: String,
    },
    /// It refused.
    #[error("it refused what it must do")]
    Refused(#[from] JournalError),
    /// The rule cannot be checked here.
    #[error("the check cannot be run")]
    Unchecked(#[from] std::io::Error),
}

/// What a rule returns.
pub type Verdict = Result<(), Breach>;

/// Runs one rule on a runtime of its own.
///
/// # Errors
/// The engine does not keep it.
pub fn check<M: Maker>(maker: &M, rule: impl AsyncFnOnce(&M) -> Verdict) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(rule(maker))
}

/// Makes a test of every rule; the expression makes a new [`Maker`].
#[macro_export]
macro_rules! journal_contract {
    ($maker:expr) => {
        $crate::journal_contract! { $maker =>
            order::a_message_is_handed_out_as_it_was_stored
            order::messages_come_in_the_order_in_which_they_were_stored
            order::a_strict_lane_waits_for_its_first
            order::a_mailbox_hands_out_side_by_side
            order::a_lease_that_runs_out_is_given_to_another
            order::a_message_that_was_given_back_keeps_its_place
            order::lanes_do_not_block_each_other
            order::a_message_may_be_held_from_the_start
            order::nobody_overtakes_what_waits
            order::numbers_are_never_used_again
            dedupe::the_same_message_is_stored_once
            dedupe::the_same_id_with_something_else_is_a_conflict
            dedupe::what_came_of_a_message_is_remembered
            dedupe::an_end_is_forgotten_after_its_time
            dedupe::the_id_of_a_removed_message_is_free
            dead::a_dead_letter_stands_in_nobodys_way
            dead::a_revived_letter_goes_behind_all_others
            dead::what_is_past_its_time_becomes_a_dead_letter
            dead::only_so_many_expire_at_a_time
            dead::a_held_message_is_not_removed
            shown::lanes_are_counted
            shown::messages_are_shown_page_by_page
            values::a_value_is_what_was_put_last
            values::a_value_is_replaced_only_where_it_is_the_expected_one
            values::keys_are_listed_in_order
            values::a_watcher_sees_changes_under_its_prefix
            limits::what_is_too_long_is_refused
            limits::a_lane_holds_only_so_many
            limits::a_closed_journal_does_nothing
            lasting::what_was_acknowledged_is_there_after_reopening
            lasting::leases_are_void_after_reopening
            lasting::numbers_go_on_after_reopening
        }
    };
    ($maker:expr => $($room:ident :: $rule:ident)*) => {
        $(
            #[test]
            fn $rule() {
                let maker = $maker;
                let verdict = $crate::contract::check(&maker, async |maker| {
                    $crate::contract::$room::$rule(maker).await
                });
                assert!(verdict.is_ok(), "{verdict:?}");
            }
        )*
    };
}

/// Compares what was found with what is wanted.
fn same<T: PartialEq + Debug>(what: &str, found: &T, wanted: &T) -> Verdict {
    match found == wanted {
        true => Ok(()),
        false => Err(Breach::Differs {
            what: what.to_owned(),
            found: format!("{found:?}"),
            wanted: format!("{wanted:?}"),
        }),
    }
}

/// Demands something.
fn holds(what: &str, holds: bool) -> Verdict {
    same(what, &holds, &true)
}

/// A moment, the same on both clocks.
fn at(ms: u64) -> At {
    At {
        now: Now(ms),
        unix_ms: 1_000_000_000_000 + ms,
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A message for ever; its digest and body follow from its id.
fn draft(lane: &str, dedupe: &str) -> Result<Draft, JournalError> {
    let mut digest = [0; 32];
    for (to, from) in digest.iter_mut().zip(dedupe.bytes()) {
        *to = from;
    }
    Ok(Draft {
        lane: Lane::new(lane)?,
        dedupe: dedupe.into(),
        digest,
        body: Bytes::from(format!("body of {dedupe}")),
        ttl: None,
        hold: None,
    })
}

/// Stores messages in this order.
async fn store(journal: &dyn Journal, lane: &str, all: &[&str], now: At) -> Verdict {
    for dedupe in all {
        let published = journal.publish(draft(lane, dedupe)?, now).await?;
        let is_new = matches!(published, Published::Stored { .. });
        holds("a new message is stored", is_new)?;
    }
    Ok(())
}

/// Leases for a second, and returns what was given.
async fn lease(
    journal: &dyn Journal,
    lane: &str,
    order: Order,
    max: usize,
    now: At,
) -> Result<Vec<Delivery>, JournalError> {
    let lane = Lane::new(lane)?;
    journal.lease(&lane, order, max, ms(1000), now).await
}

/// Leases the first of a lane, which must be this one.
async fn first(
    journal: &dyn Journal,
    lane: &str,
    dedupe: &str,
    now: At,
) -> Result<Receipt, Breach> {
    let given = lease(journal, lane, Order::Strict, 1, now).await?;
    same(
        "the first of the lane",
        &names(&given),
        &vec![dedupe.to_owned()],
    )?;
    let receipt = given.first().map(|one| one.receipt);
    receipt.ok_or(Breach::Refused(JournalError::Unknown))
}

/// Sees that a lane gives nothing.
async fn nothing(journal: &dyn Journal, lane: &str, order: Order, now: At) -> Verdict {
    let given = lease(journal, lane, order, 9, now).await?;
    same("what a lane gives", &names(&given), &Vec::new())
}

fn names(given: &[Delivery]) -> Vec<String> {
    given.iter().map(|one| one.dedupe.to_string()).collect()
}
