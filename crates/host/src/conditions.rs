//! Conditions on call arguments, written in CEL. Only this module knows the language.
//!
//! The owner of the gateway writes conditions, but callers supply the arguments. So patterns are
//! compiled when the condition is parsed, the cost of an evaluation is estimated up front, and an
//! undecidable condition refuses the call.

mod check;
mod cost;
mod patterns;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bowline_core::policy::{Condition, ConditionError, ConditionInput, EvaluationEffort};
use bowline_wire::case_fold::QueriedNames;
use bowline_wire::scan;
use cel::objects::Key;
use cel::{Context, Env, ExecutionError, Program, Value};
use thiserror::Error;

use self::check::ConditionCheck;
use self::patterns::CompiledPatterns;

/// Maximum bytes of a condition.
pub const CONDITION_BYTES_MAX: usize = 1_024;

/// Maximum bytes of arguments; longer ones make a condition undecidable.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

/// Maximum nesting of `all`, `exists`, `map` and `filter`.
pub const LOOPS_MAX: u32 = 2;

/// Maximum estimated cost of an evaluation; one unit is about 0.1 us.
pub const COST_MAX: u64 = 16_000_000;

/// Maximum estimated cost of an evaluation on the serving thread.
pub const QUICK_COST_MAX: u64 = 5_000;

/// Maximum bytes of arguments parsed on the serving thread.
pub const QUICK_ARGUMENTS_BYTES_MAX: usize = 4 * 1024;

/// Variables available to a condition.
const KNOWN_VARIABLES: [&str; 5] = ["args", "principal", "role", "server", "tool"];

/// Functions available to a condition, besides operators and loops.
const KNOWN_FUNCTIONS: [&str; 13] = [
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

/// Type names for comparisons with `type(...)`.
const KNOWN_TYPES: [&str; 10] = [
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

/// Reason why a text is no valid condition.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConditionParseError {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// The text is too long.
    #[error("it is longer than {CONDITION_BYTES_MAX} bytes")]
    TooLong,
    /// The text is no valid CEL.
    #[error("{0}")]
    Syntax(String),
    /// An undefined variable.
    #[error(
        "nothing is called `{name}`{}; there are {}",
        similar_name_hint(.near.as_deref()),
        list_variables()
    )]
    UnknownName {
        /// The name.
        name: String,
        /// A similar defined name.
        near: Option<String>,
    },
    /// An undefined function.
    #[error("there is no function `{name}`{}", similar_name_hint(.near.as_deref()))]
    UnknownFunction {
        /// The name.
        name: String,
        /// A similar defined name.
        near: Option<String>,
    },
    /// Loops are nested too deeply.
    #[error("more than {LOOPS_MAX} loops stand in each other")]
    TooManyLoops,
    /// The pattern of a `matches` call is no literal.
    #[error("the pattern of `matches` must be written out as a text, such as '^[a-z]+$'")]
    PatternNotLiteral,
    /// The pattern of a `matches` call is invalid.
    #[error("`{pattern}` is no pattern: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// Description of the error.
        reason: String,
    },
    /// The compiled pattern of a `matches` call is too large.
    #[error("the pattern `{0}` takes more than 10 MiB when it is compiled")]
    LargePattern(String),
}

fn list_variables() -> String {
    KNOWN_VARIABLES.join(", ")
}

fn similar_name_hint(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!(", did you mean `{near}`"))
}

/// Parses conditions.
#[derive(Clone)]
pub struct CelLanguage(Arc<Env>);

impl Default for CelLanguage {
    fn default() -> Self {
        Self(Arc::new(Env::stdlib().with_optional_support(false)))
    }
}

impl fmt::Debug for CelLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CelLanguage")
    }
}

/// One parsed condition.
pub struct CelCondition {
    text: Arc<str>,
    program: Program,
    /// The compiled patterns of `matches` calls.
    patterns: Arc<CompiledPatterns>,
    /// The argument names used by the condition.
    names: QueriedNames,
    language: CelLanguage,
}

impl fmt::Debug for CelCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CelCondition").field(&self.text).finish()
    }
}

impl PartialEq for CelCondition {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for CelCondition {}

impl CelLanguage {
    /// Parses a condition.
    ///
    /// # Errors
    /// The text is no valid condition.
    pub fn parse_condition(&self, text: &str) -> Result<CelCondition, ConditionParseError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(ConditionParseError::Empty);
        }
        if text.len() > CONDITION_BYTES_MAX {
            return Err(ConditionParseError::TooLong);
        }
        let program = self.0.compile(text).map_err(|errors| {
            let first = errors.errors.first();
            ConditionParseError::Syntax(
                first.map_or_else(|| errors.to_string(), |error| error.msg.clone()),
            )
        })?;
        let mut check = ConditionCheck::default();
        check.visit_node(program.expression(), 0);
        let (patterns, names) = check.into_parts()?;
        Ok(CelCondition {
            text: text.into(),
            program,
            patterns: Arc::new(patterns),
            names,
            language: self.clone(),
        })
    }
}

impl Condition for CelCondition {
    fn source_text(&self) -> &str {
        &self.text
    }

    fn evaluate(
        &self,
        input: &ConditionInput<'_>,
        effort: EvaluationEffort,
    ) -> Result<bool, ConditionError> {
        let args = self.prepare_arguments(input.arguments, effort)?;
        let mut context = Context::with_env(Arc::clone(&self.language.0));
        self.patterns.register_function(&mut context);
        context.add_variable_from_value("args", args);
        for (name, value) in [
            ("principal", input.principal),
            ("role", input.role.unwrap_or_default()),
            ("server", input.server),
            ("tool", input.name),
        ] {
            context.add_variable_from_value(name, value);
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(other) => Err(undecided_because(&format!("it is a {}", other.type_of()))),
            Err(error) => Err(to_undecided(&error)),
        }
    }
}

impl CelCondition {
    /// Parses the arguments and checks the estimated cost of the evaluation.
    fn prepare_arguments(
        &self,
        json: &[u8],
        effort: EvaluationEffort,
    ) -> Result<Value, ConditionError> {
        if json.len() > ARGUMENTS_BYTES_MAX {
            let reason = format!("the arguments are longer than {ARGUMENTS_BYTES_MAX} bytes");
            return Err(ConditionError::Failed(reason));
        }
        if effort == EvaluationEffort::Quick && json.len() > QUICK_ARGUMENTS_BYTES_MAX {
            return Err(ConditionError::NeedsFullEffort);
        }
        // Of a duplicate member the server might read the other value.
        let whole = scan::check_json(json, scan::KeyPolicy::Unique).ok();
        let parsed = whole.and_then(|()| serde_json::from_slice(json).ok());
        let Some(args @ serde_json::Value::Object(_)) = parsed else {
            return Err(undecided_because("the arguments cannot be read"));
        };
        // Of members equal except for case the server might read the other one.
        self.names
            .check_value(json.trim_ascii())
            .map_err(|alike| undecided_because(&format!("in the arguments, {alike}")))?;
        let cost = cost::estimate_cost(self.program.expression(), &args, &self.patterns);
        if cost > COST_MAX {
            return Err(ConditionError::TooCostly {
                cost,
                cost_max: COST_MAX,
            });
        }
        if effort == EvaluationEffort::Quick && cost > QUICK_COST_MAX {
            return Err(ConditionError::NeedsFullEffort);
        }
        Ok(to_cel_value(args))
    }
}

/// Converts JSON to a CEL value. Integers become signed when they fit, so arithmetic with literals
/// of the condition works.
fn to_cel_value(json: serde_json::Value) -> Value {
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
            Value::List(Arc::new(items.into_iter().map(to_cel_value).collect()))
        }
        serde_json::Value::Object(object) => {
            let members = object.into_iter();
            let members: HashMap<Key, Value> = members
                .map(|(key, member)| (Key::from(key), to_cel_value(member)))
                .collect();
            Value::from(members)
        }
    }
}

fn undecided_because(reason: &str) -> ConditionError {
    ConditionError::Failed(reason.to_owned())
}

/// Maps an evaluation error to a reason without argument values.
fn to_undecided(error: &ExecutionError) -> ConditionError {
    let reason = match error {
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
    undecided_because(reason)
}
