//! The world in a box, for tests: scripted servers whose every deed is recorded.
//!
//! Time is tokio's: a test that starts with a paused clock holds the hands.

mod caller;
mod dial;
mod gate;
mod history;
mod hub;
mod json;
mod ledger;
mod link;
mod script;
mod world;

pub use caller::{CALL_ID, Ears, Hearer, ask, body, call, call_of, reaches, spec};
pub use dial::ScriptedDial;
pub use gate::Gate;
pub use history::{Happened, Moment};
pub use hub::OpenHub;
pub use json::{annotated, definition, literal};
pub use ledger::{Deed, Ledger, Life, Record};
pub use link::ScriptedLink;
pub use script::{Act, Generation, Script, Start};
pub use world::World;
