//! What our own peers say of a request beside its parameters: who can be asked, in which era it is
//! written, and to which run and trace it belongs.

use std::sync::Arc;

use bowline_core::caller::{Abilities, Ability};
use bowline_core::era::Era;
use bowline_core::level::Level;
use bowline_core::run::RUN_ID_BYTES_MAX;
use bowline_core::trace::{TRACEPARENT, TRACESTATE, Trace};
use bytes::Bytes;

use super::write::array;
use crate::frame::FrameError;
use crate::members::Members;
use crate::object;
use crate::span::Span;
use crate::splice::write_string;
use crate::writer::Object;

/// Names of sessions, in bytes.
const SESSION_BYTES_MAX: usize = 128;

/// The caller of a request, as far as its server may know it: member `mcp`,
/// `{"session":..,"can":[..],"level":..,"era":"modern","run":..,"traceparent":..,"tracestate":..}`.
/// What is not said is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The session that asks; nobody's where absent.
    pub session: Option<Arc<str>>,
    /// What the caller can be asked for.
    pub abilities: Abilities,
    /// From which level on it wants to hear log messages.
    pub level: Option<Level>,
    /// The era that the parameters are written in.
    pub era: Era,
    /// The id of the run that the call belongs to.
    pub run: Option<Arc<str>>,
    /// The span that the work is part of.
    pub trace: Option<Box<Trace>>,
}

/// Returns the ability of a word, where it is one.
pub(super) fn ability(said: &str) -> Option<Ability> {
    let mut known = Ability::ALL.into_iter();
    known.find(|ability| word(*ability) == said)
}

/// Returns the word for an ability.
pub(super) const fn word(ability: Ability) -> &'static str {
    match ability {
        Ability::Sampling => "sampling",
        Ability::SamplingTools => "sampling_tools",
        Ability::ElicitationForm => "elicitation_form",
        Ability::ElicitationUrl => "elicitation_url",
        Ability::Roots => "roots",
    }
}

/// Reads an era; one that is not known here is no era of ours.
pub(super) fn era<const N: usize>(members: &Members<'_, N>) -> Result<Era, FrameError> {
    let Some(said) = members.text_if("era")? else {
        return Ok(Era::Legacy);
    };
    [Era::Legacy, Era::Modern]
        .into_iter()
        .find(|era| era.as_str() == &*said)
        .ok_or(FrameError::Member("era"))
}

/// Writes an era, unless it is the one that is meant where nothing is said.
pub(super) fn write_era(object: Object<'_>, era: Era) -> Object<'_> {
    match era {
        Era::Legacy => object,
        Era::Modern => object.text("era", era.as_str()),
    }
}

impl Context {
    pub(super) fn inside(text: &Bytes, at: Span) -> Result<Self, FrameError> {
        const NAMES: [&str; 7] = [
            "session",
            "can",
            "level",
            "era",
            "run",
            TRACEPARENT,
            TRACESTATE,
        ];
        let members = Members::inside(text, at, &NAMES, "mcp")?;
        let session = members.text_if("session")?;
        if session
            .as_ref()
            .is_some_and(|name| name.len() > SESSION_BYTES_MAX)
        {
            return Err(FrameError::Member("session"));
        }
        let run = members.text_if("run")?;
        let is_run = |run: &Arc<str>| (1..=RUN_ID_BYTES_MAX).contains(&run.len());
        if !run.as_ref().is_none_or(is_run) {
            return Err(FrameError::Member("run"));
        }
        // A context that is not valid is none, as everywhere.
        let parent = members.text_if(TRACEPARENT).ok().flatten();
        let state = members.text_if(TRACESTATE).ok().flatten();
        let trace = parent.and_then(|parent| Trace::read(&parent, state.as_deref()));
        let level = members.text_if("level")?;
        let can = members.begun("can", b'[')?.unwrap_or_default();
        let mut abilities = Abilities::default();
        for item in object::items(&can) {
            // An ability that is not known here is one that nobody here asks for.
            let said = object::string(item.of(&can));
            let known = said.and_then(|said| ability(&said));
            abilities = known.into_iter().fold(abilities, Abilities::with);
        }
        Ok(Self {
            session,
            abilities,
            level: level.and_then(|level| Level::parse(&level)),
            era: era(&members)?,
            run,
            trace: trace.map(Box::new),
        })
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let can: Vec<Ability> = Ability::ALL
            .into_iter()
            .filter(|ability| self.abilities.has(*ability))
            .collect();
        let object = Object::bare(out)
            .text_if("session", self.session.as_deref())
            .text_if("level", self.level.map(Level::as_str));
        let object = match can.is_empty() {
            true => object,
            false => object.nested("can", |out| {
                array(out, &can, |one, out| write_string(out, word(*one)));
            }),
        };
        let object = write_era(object, self.era).text_if("run", self.run.as_deref());
        let Some(trace) = &self.trace else {
            return object.end();
        };
        object
            .text(TRACEPARENT, &trace.context.to_string())
            .text_if(TRACESTATE, trace.state.as_deref())
            .end();
    }
}
