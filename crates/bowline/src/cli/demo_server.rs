//! The server of `up --demo`: six simple tools inside the gateway's process, for a first try.

use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_host::tools::{ExecuteError, Toolbox};
use bowline_host::{Server, ToolOutput, ToolSchema};
use bowline_runtime::Clock;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::civil;

/// Name of the server.
pub(super) const DEMO_SERVER: &str = "demo";

const SIDES_MAX: u64 = 1_000_000;
const NOTES_MAX: usize = 1_000;
const NOTE_BYTES_MAX: usize = 4_096;

/// Effect of a tool, as announced to clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToolEffect {
    Read,
    Write,
}

#[derive(Debug, Deserialize)]
struct EchoArguments {
    message: String,
}

#[derive(Debug, Deserialize)]
struct AddArguments {
    a: f64,
    b: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct DiceArguments {
    #[serde(default = "six_sides")]
    sides: u64,
}

#[derive(Debug, Deserialize)]
struct NoteArguments {
    text: String,
}

const fn six_sides() -> u64 {
    6
}

/// Returns the server with its six tools.
pub(super) fn demo_server(clock: Arc<dyn Clock>) -> Server {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let added = Arc::clone(&notes);
    let [echo, add, now, dice, note_add, note_list] = tool_schemas();
    let tools = Toolbox::default()
        .with_schema(echo, |arguments, _| {
            reply(arguments.deserialize(), |given: EchoArguments| {
                ToolOutput::from_text(&given.message)
            })
        })
        .with_schema(add, |arguments, _| {
            reply(arguments.deserialize(), |given: AddArguments| {
                ToolOutput::from_text(&(given.a + given.b).to_string())
            })
        })
        .with_schema(now, move |_, _| {
            let now = civil::format_utc(clock.unix_ms());
            std::future::ready(Ok(ToolOutput::from_text(&now)))
        })
        .with_schema(dice, |arguments, _| {
            reply(arguments.deserialize(), roll_die)
        })
        .with_schema(note_add, move |arguments, _| {
            reply(arguments.deserialize(), |given| add_note(&added, given))
        })
        .with_schema(note_list, move |_, _| {
            let listed = json!({ "notes": *lock(&notes) });
            std::future::ready(Ok(ToolOutput::from_value(&listed)))
        });
    Server::in_process(DEMO_SERVER, tools)
}

fn tool_schemas() -> [ToolSchema; 6] {
    let number = json!({ "type": "number" });
    let sides = json!({
        "type": "integer",
        "minimum": 2,
        "maximum": SIDES_MAX,
        "default": six_sides(),
        "description": "How many sides the die has.",
    });
    let message = json!({ "type": "string", "description": "What to say back." });
    let note = json!({ "type": "string", "description": "What to remember." });
    let read = |name, about, properties, required| {
        tool_schema(name, about, ToolEffect::Read, properties, required)
    };
    [
        read(
            "echo",
            "Says back the message it is given.",
            &json!({ "message": message }),
            &["message"],
        ),
        read(
            "add",
            "Adds two numbers.",
            &json!({ "a": number, "b": number }),
            &["a", "b"],
        ),
        read("now", "Says what time it is, in UTC.", &json!({}), &[]),
        read(
            "dice",
            "Rolls a die, with six sides unless told otherwise.",
            &json!({ "sides": sides }),
            &[],
        ),
        tool_schema(
            "note_add",
            "Remembers a note until the gateway stops.",
            ToolEffect::Write,
            &json!({ "text": note }),
            &["text"],
        ),
        read(
            "note_list",
            "Lists the notes, the oldest first.",
            &json!({}),
            &[],
        ),
    ]
}

fn tool_schema(
    name: &str,
    about: &str,
    effect: ToolEffect,
    properties: &Value,
    required: &[&str],
) -> ToolSchema {
    let input = json!({ "type": "object", "properties": properties, "required": required });
    let definition = json!({
        "name": name,
        "description": about,
        "inputSchema": input,
        "annotations": {
            "readOnlyHint": effect == ToolEffect::Read,
            "destructiveHint": false,
            "openWorldHint": false,
        },
    });
    let plain = || ToolSchema::new(name, about, &input);
    ToolSchema::from_definition(&definition).unwrap_or_else(plain)
}

/// Runs a tool on its arguments, or reports why the arguments do not fit.
fn reply<T>(
    arguments: Result<T, serde_json::Error>,
    run: impl FnOnce(T) -> ToolOutput,
) -> std::future::Ready<Result<ToolOutput, ExecuteError>> {
    let output = match arguments {
        Ok(arguments) => run(arguments),
        Err(error) => ToolOutput::from_error(&error.to_string()),
    };
    std::future::ready(Ok(output))
}

fn roll_die(given: DiceArguments) -> ToolOutput {
    if !(2..=SIDES_MAX).contains(&given.sides) {
        return ToolOutput::from_error(&format!("a die has 2 to {SIDES_MAX} sides"));
    }
    match getrandom::u64() {
        Ok(random) => ToolOutput::from_text(&(random % given.sides + 1).to_string()),
        Err(error) => ToolOutput::from_error(&format!("no random number: {error}")),
    }
}

fn add_note(notes: &Mutex<Vec<String>>, given: NoteArguments) -> ToolOutput {
    if given.text.len() > NOTE_BYTES_MAX {
        return ToolOutput::from_error(&format!("a note has at most {NOTE_BYTES_MAX} bytes"));
    }
    let mut notes = lock(notes);
    if notes.len() >= NOTES_MAX {
        return ToolOutput::from_error("there are too many notes");
    }
    notes.push(given.text);
    ToolOutput::from_text(&format!("Noted; {} in all.", notes.len()))
}
