//! Conditions on the arguments of calls, written in CEL. Nobody else here knows the language.
//!
//! A condition is written by the owner of the gateway, and its arguments by whoever calls: so what
//! it costs is bounded by what it may look at, and whatever cannot be decided refuses the call.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bowline_core::policy::{Condition, Facts, Undecided};
use bowline_wire::scan;
use cel::common::ast::{EntryExpr, Expr};
use cel::objects::Key;
use cel::{Context, Env, ExecutionError, IdedExpr, Program, Value};
use thiserror::Error;

use crate::config::suggest::nearest;

/// The longest condition.
pub const CONDITION_BYTES_MAX: usize = 1_024;

/// Arguments longer than this are not looked at.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

/// How deep `all`, `exists`, `map` and `filter` may stand in each other.
pub const LOOPS_MAX: u32 = 2;

/// Steps that the loops of a condition may take, at most: all values of the arguments, as often as
/// loops stand in each other.
pub const STEPS_MAX: u64 = 1_000_000;

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
    /// How deep its loops stand in each other.
    loops: u32,
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
        let mut look = Look::default();
        look.at(program.expression(), 0);
        if let Some(fault) = look.unknown {
            return Err(fault);
        }
        if look.loops > LOOPS_MAX {
            return Err(Fault::TooManyLoops);
        }
        Ok(Cel {
            text: text.into(),
            program,
            loops: look.loops,
            language: self.clone(),
        })
    }
}

impl Condition for Cel {
    fn text(&self) -> &str {
        &self.text
    }

    fn holds(&self, facts: &Facts<'_>) -> Result<bool, Undecided> {
        let args = self.arguments(facts.arguments)?;
        let mut context = Context::with_env(Arc::clone(&self.language.0));
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
    fn arguments(&self, json: &[u8]) -> Result<Value, Undecided> {
        if json.len() > ARGUMENTS_BYTES_MAX {
            let why = format!("the arguments are longer than {ARGUMENTS_BYTES_MAX} bytes");
            return Err(Undecided(why));
        }
        // Of a member that comes twice the server might read the other one.
        let whole = scan::check(json, scan::Keys::Unique).ok();
        let parsed = whole.and_then(|()| serde_json::from_slice(json).ok());
        let Some(serde_json::Value::Object(object)) = parsed else {
            return Err(undecided("the arguments cannot be read"));
        };
        let mut count = 0;
        let args = map(object, &mut count);
        let steps = count.checked_pow(self.loops);
        if steps.is_none_or(|steps| steps > STEPS_MAX) {
            return Err(undecided("the arguments hold too many values"));
        }
        Ok(args)
    }
}

/// Turns JSON into what the language knows, and counts the values. A whole number is signed where
/// it fits, so that it can be reckoned with the numbers of the condition.
fn value(json: serde_json::Value, count: &mut u64) -> Value {
    *count += 1;
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
            let items = items.into_iter().map(|item| value(item, count));
            Value::List(Arc::new(items.collect()))
        }
        serde_json::Value::Object(object) => map(object, count),
    }
}

fn map(object: serde_json::Map<String, serde_json::Value>, count: &mut u64) -> Value {
    let members = object.into_iter();
    let members: HashMap<Key, Value> = members
        .map(|(key, member)| (Key::from(key), value(member, count)))
        .collect();
    Value::from(members)
}

fn undecided(why: &str) -> Undecided {
    Undecided(why.to_owned())
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

/// What there is to know of a condition before it is asked.
#[derive(Debug, Default)]
struct Look {
    /// The variables of the loops that are open.
    bound: Vec<String>,
    /// The first name that nobody gives a meaning.
    unknown: Option<Fault>,
    /// How deep loops stand in each other.
    loops: u32,
}

impl Look {
    fn at(&mut self, node: &IdedExpr, loops: u32) {
        self.loops = self.loops.max(loops);
        match &node.expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => self.name(name),
            Expr::Call(call) => {
                self.function(&call.func_name);
                for part in call.target.as_deref().into_iter().chain(&call.args) {
                    self.at(part, loops);
                }
            }
            Expr::Comprehension(all) => {
                self.at(&all.iter_range, loops);
                self.at(&all.accu_init, loops);
                let outside = self.bound.len();
                self.bound.push(all.iter_var.clone());
                self.bound.extend(all.iter_var2.clone());
                self.bound.push(all.accu_var.clone());
                for inner in [&all.loop_cond, &all.loop_step, &all.result] {
                    self.at(inner, loops + 1);
                }
                self.bound.truncate(outside);
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.at(element, loops);
                }
            }
            Expr::Map(map) => map
                .entries
                .iter()
                .for_each(|entry| self.entry(&entry.expr, loops)),
            Expr::Select(select) => self.at(&select.operand, loops),
            Expr::Struct(fields) => {
                let entries = fields.entries.iter();
                entries.for_each(|entry| self.entry(&entry.expr, loops));
            }
        }
    }

    fn entry(&mut self, entry: &EntryExpr, loops: u32) {
        match entry {
            EntryExpr::StructField(field) => self.at(&field.value, loops),
            EntryExpr::MapEntry(pair) => {
                self.at(&pair.key, loops);
                self.at(&pair.value, loops);
            }
        }
    }

    fn name(&mut self, name: &str) {
        let given = VARIABLES.contains(&name) || TYPES.contains(&name);
        if !given && !self.bound.iter().any(|bound| bound == name) {
            let near = nearest(name, VARIABLES).map(str::to_owned);
            let name = name.to_owned();
            self.unknown
                .get_or_insert(Fault::UnknownName { name, near });
        }
    }

    /// Operators are functions whose names hold signs.
    fn function(&mut self, name: &str) {
        let is_operator = !name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_operator && !FUNCTIONS.contains(&name) {
            let near = nearest(name, FUNCTIONS).map(str::to_owned);
            let name = name.to_owned();
            self.unknown
                .get_or_insert(Fault::UnknownFunction { name, near });
        }
    }
}
