//! Conditions on the arguments of calls, written in CEL. Nobody else here knows the language.
//!
//! A condition is written by the owner of the gateway, and its arguments by whoever calls: so its
//! patterns are compiled when it is read, the cost of an evaluation is estimated before it begins,
//! and whatever cannot be decided refuses the call.

mod check;
mod cost;
mod patterns;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bowline_core::policy::{Condition, Effort, Facts, Undecided};
use bowline_wire::fold::Names;
use bowline_wire::scan;
use cel::objects::Key;
use cel::{Context, Env, ExecutionError, Program, Value};
use thiserror::Error;

use self::check::Check;
use self::patterns::Patterns;

/// The longest condition.
pub const CONDITION_BYTES_MAX: usize = 1_024;

/// Arguments longer than this are not looked at.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

/// How deep `all`, `exists`, `map` and `filter` may stand in each other.
pub const LOOPS_MAX: u32 = 2;

/// Units of work that an evaluation may take, by its estimate: one unit is about 0.1 us.
pub const COST_MAX: u64 = 16_000_000;

/// Units of work that an evaluation may take on the serving thread.
pub const QUICK_COST_MAX: u64 = 5_000;

/// Arguments longer than this are not even parsed on the serving thread.
pub const QUICK_ARGUMENTS_BYTES_MAX: usize = 4 * 1024;

/// The names a condition may use.
const VARIABLES: [&str; 5] = ["args", "principal", "role", "server", "tool"];

/// The functions a condition may use, beside operators and loops.
const FUNCTIONS: [&str; 13] = [
    "bool",
    "bytes",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "int",
    "matches",
    "size",
    "startsWith",
    "string",
    "type",
    "uint",
];

/// The names of types, which `type(...)` can be compared with.
const TYPES: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// Why a text is no condition.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// There is nothing.
    #[error("it is empty")]
    Empty,
    /// There is too much.
    #[error("it is longer than {CONDITION_BYTES_MAX} bytes")]
    TooLong,
    /// It does not follow the language.
    #[error("{0}")]
    Syntax(String),
    /// It uses a name that nobody gives a value.
    #[error("nothing is called `{name}`{}; there are {}", hint(.near.as_deref()), variables())]
    UnknownName {
        /// The name.
        name: String,
        /// The one that was perhaps meant.
        near: Option<String>,
    },
    /// It uses a function that there is not.
    #[error("there is no function `{name}`{}", hint(.near.as_deref()))]
    UnknownFunction {
        /// The name.
        name: String,
        /// The one that was perhaps meant.
        near: Option<String>,
    },
    /// Its loops stand too deep in each other.
    #[error("more than {LOOPS_MAX} loops stand in each other")]
    TooManyLoops,
    /// A pattern of `matches` is not written out.
    #[error("the pattern of `matches` must be written out as a text, such as '^[a-z]+$'")]
    PatternNotLiteral,
    /// A pattern of `matches` does not follow the syntax of patterns.
    #[error("`{pattern}` is no pattern: {reason}")]
    BadPattern {
        /// As it was written.
        pattern: String,
        /// What is wrong.
        reason: String,
    },
    /// A pattern of `matches` is too large once it is compiled.
    #[error("the pattern `{0}` takes more than 10 MiB when it is compiled")]
    LargePattern(String),
}

fn variables() -> String {
    VARIABLES.join(", ")
}

fn hint(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!(", did you mean `{near}`"))
}

/// Reads conditions.
#[derive(Clone)]
pub struct Language(Arc<Env>);

impl Default for Language {
    fn default() -> Self {
        Self(Arc::new(Env::stdlib().with_optional_support(false)))
    }
}

impl fmt::Debug for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Language")
    }
}

/// One condition, ready to be asked.
pub struct Cel {
    text: Arc<str>,
    program: Program,
    /// Its patterns, compiled.
    patterns: Arc<Patterns>,
    /// The names by which it asks for arguments.
    names: Names,
    language: Language,
}

impl fmt::Debug for Cel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cel").field(&self.text).finish()
    }
}

impl PartialEq for Cel {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cel {}

impl Language {
    /// Reads a condition.
    ///
    /// # Errors
    /// It cannot be one.
    pub fn read(&self, text: &str) -> Result<Cel, Fault> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Fault::Empty);
        }
        if text.len() > CONDITION_BYTES_MAX {
            return Err(Fault::TooLong);
        }
        let program = self.0.compile(text).map_err(|errors| {
            let first = errors.errors.first();
            Fault::Syntax(first.map_or_else(|| errors.to_string(), |error| error.msg.clone()))
        })?;
        let mut check = Check::default();
        check.visit(program.expression(), 0);
        let (patterns, names) = check.finish()?;
        Ok(Cel {
            text: text.into(),
            program,
            patterns: Arc::new(patterns),
            names,
            language: self.clone(),
        })
    }
}

impl Condition for Cel {
    fn text(&self) -> &str {
        &self.text
    }

    fn holds(&self, facts: &Facts<'_>, effort: Effort) -> Result<bool, Undecided> {
        let args = self.arguments(facts.arguments, effort)?;
        let mut context = Context::with_env(Arc::clone(&self.language.0));
        self.patterns.register(&mut context);
        context.add_variable_from_value("args", args);
        for (name, value) in [
            ("principal", facts.principal),
            ("role", facts.role.unwrap_or_default()),
            ("server", facts.server),
            ("tool", facts.name),
        ] {
            context.add_variable_from_value(name, value);
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(other) => Err(undecided(&format!("it is a {}", other.type_of()))),
            Err(error) => Err(reason(&error)),
        }
    }
}

impl Cel {
    /// Reads the arguments and makes sure that the evaluation on them takes no more than it may.
    fn arguments(&self, json: &[u8], effort: Effort) -> Result<Value, Undecided> {
        if json.len() > ARGUMENTS_BYTES_MAX {
            let why = format!("the arguments are longer than {ARGUMENTS_BYTES_MAX} bytes");
            return Err(Undecided::Because(why));
        }
        if effort == Effort::Quick && json.len() > QUICK_ARGUMENTS_BYTES_MAX {
            return Err(Undecided::TakesLong);
        }
        // Of a member that comes twice the server might read the other one.
        let whole = scan::check(json, scan::Keys::Unique).ok();
        let parsed = whole.and_then(|()| serde_json::from_slice(json).ok());
        let Some(args @ serde_json::Value::Object(_)) = parsed else {
            return Err(undecided("the arguments cannot be read"));
        };
        // Of members that differ in case only the server might read another one as well.
        self.names
            .check(json.trim_ascii())
            .map_err(|alike| undecided(&format!("in the arguments, {alike}")))?;
        let cost = cost::estimate(self.program.expression(), &args, &self.patterns);
        if cost > COST_MAX {
            return Err(Undecided::TooCostly {
                cost,
                cost_max: COST_MAX,
            });
        }
        if effort == Effort::Quick && cost > QUICK_COST_MAX {
            return Err(Undecided::TakesLong);
        }
        Ok(value(args))
    }
}

/// Turns JSON into what the language knows. A whole number is signed where it fits, so that it can
/// be reckoned with the numbers of the condition.
fn value(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(yes) => Value::Bool(yes),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::UInt(number),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::String(Arc::new(text)),
        serde_json::Value::Array(items) => {
            Value::List(Arc::new(items.into_iter().map(value).collect()))
        }
        serde_json::Value::Object(object) => {
            let members = object.into_iter();
            let members: HashMap<Key, Value> = members
                .map(|(key, member)| (Key::from(key), value(member)))
                .collect();
            Value::from(members)
        }
    }
}

fn undecided(why: &str) -> Undecided {
    Undecided::Because(why.to_owned())
}

/// Says why, without what the arguments hold.
fn reason(error: &ExecutionError) -> Undecided {
    let why = match error {
        ExecutionError::NoSuchKey(_) => "an argument that it asks for is missing",
        ExecutionError::NoSuchOverload(_)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedTargetType { .. } => "an argument has another type",
        ExecutionError::UndeclaredReference(_) => "it uses a function that there is not",
        ExecutionError::IndexOutOfBounds(_) => "a list is too short",
        ExecutionError::DivisionByZero(_)
        | ExecutionError::RemainderByZero(_)
        | ExecutionError::Overflow(..) => "it cannot be reckoned",
        _ => "it fails on these arguments",
    };
    undecided(why)
}
