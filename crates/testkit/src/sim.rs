//! Scripted servers behind a host, with a record of every action, and a hub for peers.

mod history;
mod release_gate;
mod scripted_dial;
mod scripted_link;
mod server_script;
mod sim_json;
mod sim_ledger;
mod test_calls;
mod test_hub;
mod world;

pub use history::{HistoryEntry, HistoryEvent};
pub use release_gate::ReleaseGate;
pub use scripted_dial::ScriptedDial;
pub use scripted_link::ScriptedLink;
pub use server_script::{GenerationScript, ServerScript, StartBehaviour, ToolBehaviour};
pub use sim_json::{annotated_tool, to_json_string, tool_definition};
pub use sim_ledger::{ServerInstance, SimLedger, SimRecord, ToolExecution};
pub use test_calls::{
    CALL_ID, RecordingClient, RecordingSink, reply_body, server_spec, server_tool_call,
    subject_call, tool_call, wait_for_state,
};
pub use test_hub::TestHub;
pub use world::SimWorld;
