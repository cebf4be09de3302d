//! How each call ended, held against what its server did.

use std::collections::BTreeSet;

use bowline_core::error::{CallError, Execution};
use bowline_host::spec::ServerSpec;
use bowline_sim::Record;

use crate::calls::{End, Made};
use crate::worlds::is_repeatable;

pub(crate) fn judge(
    ends: &[Made],
    specs: &[ServerSpec],
    record: &Record,
    broken: &mut Vec<String>,
) {
    for made in ends {
        let spec = specs.iter().find(|spec| spec.name == made.server).unwrap();
        one(made, spec, record, broken);
    }
}

fn one(made: &Made, spec: &ServerSpec, record: &Record, broken: &mut Vec<String>) {
    let own = |deed: &&bowline_sim::Deed| deed.arguments == made.arguments;
    let runs: Vec<_> = record.executions.iter().filter(own).collect();
    let taken_back = record.cancellations.iter().filter(own).count();
    let ran = runs.len();
    let mut demand = |holds: bool, law: &str| {
        if !holds {
            broken.push(format!(
                "{law}: {made:?} ran {ran} times and was taken back {taken_back} times"
            ));
        }
    };
    let lives: BTreeSet<_> = runs.iter().map(|deed| deed.generation).collect();
    if is_repeatable(spec, made.tool) {
        demand(ran <= 2, "a call was repeated more than once");
        demand(lives.len() == ran, "a call was repeated on the same link");
    } else {
        demand(ran <= 1, "a call that is not safe to repeat ran twice");
    }
    let agrees = match &made.end {
        End::Answered => ran >= 1,
        End::Failed(error) => match error.execution() {
            Execution::NotStarted => ran == 0,
            Execution::Unknown => true,
            Execution::Completed => ran >= 1,
        },
        End::Dropped => true,
    };
    demand(agrees, "the end of a call does not say what happened");
    let told = match &made.end {
        End::Answered => taken_back == 0,
        End::Failed(CallError::Timeout { .. }) => taken_back == ran.min(1),
        End::Failed(_) => taken_back == 0,
        End::Dropped => taken_back <= 1,
    };
    demand(told, "a call was taken back wrongly");
    demand(made.took <= made.limit, "a call took longer than it may");
}
