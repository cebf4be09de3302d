//! Compares call outcomes with the actions of the server.

use std::collections::BTreeSet;

use bowline_core::error::{CallError, ExecutionStatus};
use bowline_host::spec::ServerSpec;
use bowline_testkit::SimRecord;

use crate::calls::{CallFate, FinishedCall};
use crate::worlds::is_repeatable;

pub(crate) fn check_calls(
    ends: &[FinishedCall],
    specs: &[ServerSpec],
    record: &SimRecord,
    broken: &mut Vec<String>,
) {
    for made in ends {
        let spec = specs.iter().find(|spec| spec.name == made.server).unwrap();
        check_call(made, spec, record, broken);
    }
}

fn check_call(
    made: &FinishedCall,
    spec: &ServerSpec,
    record: &SimRecord,
    broken: &mut Vec<String>,
) {
    let own = |deed: &&bowline_testkit::ToolExecution| deed.arguments == made.arguments;
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
        CallFate::Answered => ran >= 1,
        CallFate::Failed(error) => match error.execution_status() {
            ExecutionStatus::NotStarted => ran == 0,
            ExecutionStatus::Unknown => true,
            ExecutionStatus::Completed => ran >= 1,
        },
        CallFate::Dropped => true,
    };
    demand(agrees, "the end of a call does not say what happened");
    let told = match &made.end {
        CallFate::Answered => taken_back == 0,
        CallFate::Failed(CallError::Timeout { .. }) => taken_back == ran.min(1),
        CallFate::Failed(_) => taken_back == 0,
        CallFate::Dropped => taken_back <= 1,
    };
    demand(told, "a call was taken back wrongly");
    demand(made.took <= made.limit, "a call took longer than it may");
}
