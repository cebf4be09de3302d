//! Requests of a hub for a server of its worker that are no calls of tools.

use std::sync::Arc;

use bowline_core::cache::Sharing;
use bowline_core::call::{Principal, Role, Scope};
use bowline_core::era::Era;
use bowline_core::error::{CallError, Failure};
use bowline_core::level::Level;
use bowline_core::mailbox::HUB;
use bowline_core::time::millis;
use bowline_wire::broker::{Answer, From};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::Job;
use super::host::HostBackend;
use super::params::Given;
use crate::broker::failures;
use crate::catalog::{Item, ListKind, Shelf};

/// The name of the hub where it asks on nobody's behalf; a colon is in no name here.
const ITSELF: &str = "hub:";

/// A list is told in pages of about so many bytes.
const PAGE_BYTES: usize = 1024 * 1024;

/// One request of a hub.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) server: &'a Arc<str>,
    pub(super) method: &'a str,
    pub(super) params: Option<&'a Bytes>,
}

/// Whether the hub asks for itself: for lists, and for what it wants to hear of on behalf of all
/// who are connected with it. Everybody else is stamped.
pub(super) fn is_hub(from: &From) -> bool {
    *from.session_id == *HUB && from.principal.is_none() && from.role.is_none()
}

impl HostBackend {
    /// Answers one request.
    pub(super) async fn mcp(&self, job: &Job, asked: Asked<'_>) -> Answer {
        let answer = match ListKind::ALL
            .into_iter()
            .find(|kind| kind.method() == asked.method)
        {
            Some(kind) => self.page(kind, asked),
            None => match asked.method {
                method::RESOURCES_SUBSCRIBE => self.subscribe(job, asked).await,
                method::RESOURCES_UNSUBSCRIBE => self.unsubscribe(job, asked).await,
                method::LOGGING_SET_LEVEL => self.set_level(job, asked).await,
                method::TASKS_LIST => self.tasks(job, asked).await,
                _ => match Given::of(asked.method, asked.params) {
                    Some(given) => {
                        let scope = Scope::Server(Arc::clone(asked.server));
                        return self.call(job, scope, given).await;
                    }
                    None => Ok(unknown(asked.method)),
                },
            },
        };
        answer.unwrap_or_else(Answer::Failed)
    }

    /// Tells a part of a list, whoever asks: what may be used of it is decided when it is used.
    fn page(&self, kind: ListKind, asked: Asked<'_>) -> Result<Answer, Failure> {
        let cursor = asked
            .params
            .and_then(|params| object::text(params, "cursor"));
        let first = cursor.map_or(Ok(0), |cursor| cursor.parse::<usize>());
        let first = first.map_err(|_| failures::bad_request(&"the cursor is none of ours"))?;
        let host = self.host();
        let catalog = host.catalog();
        host.refresh_stale(&catalog, &Scope::Server(Arc::clone(asked.server)), kind);
        let shelf = catalog.offer(asked.server).map(|offer| offer.shelf(kind));
        let items: &[Item] = shelf.map_or(&[], |shelf| &shelf.items);
        let mut page = format!("{{\"{}\":[", kind.member()).into_bytes();
        let mut next = first;
        for item in items.get(first..).unwrap_or_default() {
            if next > first {
                if page.len() + item.definition.len() > PAGE_BYTES {
                    break;
                }
                page.push(b',');
            }
            page.extend_from_slice(&item.definition);
            next += 1;
        }
        page.push(b']');
        if next < items.len() {
            page.extend_from_slice(b",\"nextCursor\":");
            write_string(&mut page, itoa::Buffer::new().format(next));
        }
        // By this word the hub knows that some of its callers need the definitions written anew.
        let era = shelf.map_or(Era::Legacy, Shelf::era);
        if era == Era::Modern {
            page.extend_from_slice(b",\"resultType\":\"complete\"");
        }
        if let Some(hint) = shelf.and_then(|shelf| shelf.listing.hint) {
            let scope = match hint.sharing {
                Sharing::Public => "public",
                Sharing::Private => "private",
            };
            let end = shelf.and_then(Shelf::good_until);
            let left = end.map_or(hint.ttl, |end| host.clock().now().until(end));
            let ttl_ms = millis(left);
            let hint = format!(",\"ttlMs\":{ttl_ms},\"cacheScope\":\"{scope}\"");
            page.extend_from_slice(hint.as_bytes());
        }
        page.push(b'}');
        Ok(Answer::Output {
            result: page.into(),
            again: false,
            era,
        })
    }

    /// Has the hub told of a resource. Whoever of its callers wants to know asks first whether it
    /// may.
    async fn subscribe(&self, job: &Job, asked: Asked<'_>) -> Result<Answer, Failure> {
        let uri = text(asked, "uri")?;
        let scope = Scope::Server(Arc::clone(asked.server));
        let stay = self.stay(asked.server, None)?;
        let outcome = match is_hub(&job.from) {
            true => {
                let (who, home) = (itself(), stay.home());
                self.host().subscribe(&who, &scope, &home, &uri).await
            }
            false => {
                let who = self.principal(&job.from, job.principal.as_ref())?;
                self.host().may_subscribe(&who, &scope, &uri).await
            }
        };
        Ok(told(outcome))
    }

    async fn unsubscribe(&self, job: &Job, asked: Asked<'_>) -> Result<Answer, Failure> {
        let uri = text(asked, "uri")?;
        only_hub(job)?;
        let scope = Scope::Server(Arc::clone(asked.server));
        let stay = self.stay(asked.server, None)?;
        let host = self.host();
        let outcome = host.unsubscribe(&itself(), &scope, stay.key(), &uri).await;
        Ok(told(outcome))
    }

    async fn set_level(&self, job: &Job, asked: Asked<'_>) -> Result<Answer, Failure> {
        let level = text(asked, "level")?;
        only_hub(job)?;
        let Some(level) = Level::parse(&level) else {
            return Err(failures::bad_request(&"there is no such level"));
        };
        let scope = Scope::Server(Arc::clone(asked.server));
        let stay = self.stay(asked.server, None)?;
        let outcome = self
            .host()
            .set_level(&itself(), &scope, stay.key(), level)
            .await;
        Ok(told(outcome))
    }

    async fn tasks(&self, job: &Job, asked: Asked<'_>) -> Result<Answer, Failure> {
        let who = self.principal(&job.from, job.principal.as_ref())?;
        let scope = Scope::Server(Arc::clone(asked.server));
        let outcome = self.host().tasks_of(&who, &scope).await;
        Ok(outcome.map_or_else(|error| failed(&error), done))
    }
}

fn itself() -> Principal {
    Principal::new(ITSELF, Role::OwnersAgent)
}

fn only_hub(job: &Job) -> Result<(), Failure> {
    match is_hub(&job.from) {
        true => Ok(()),
        false => Err(failures::bad_request(&"this is for the hub to ask")),
    }
}

fn text(asked: Asked<'_>, key: &'static str) -> Result<String, Failure> {
    let text = asked.params.and_then(|params| object::text(params, key));
    let text = text.map(Into::into);
    text.ok_or_else(|| failures::bad_request(&format!("`{key}` is missing")))
}

fn done(result: Bytes) -> Answer {
    Answer::Output {
        result,
        again: false,
        era: Era::Legacy,
    }
}

fn told(outcome: Result<(), CallError>) -> Answer {
    match outcome {
        Ok(()) => done(Bytes::from_static(b"{}")),
        Err(error) => failed(&error),
    }
}

fn failed(error: &CallError) -> Answer {
    match error {
        CallError::Refused { error, .. } => Answer::Rpc {
            error: error.clone(),
            era: Era::Legacy,
        },
        error => Answer::Failed(error.to_failure()),
    }
}

fn unknown(method: &str) -> Answer {
    let mut error = format!("{{\"code\":{},\"message\":", code::METHOD_NOT_FOUND).into_bytes();
    write_string(&mut error, &format!("`{method}` does not go to a peer"));
    error.push(b'}');
    Answer::Rpc {
        error: error.into(),
        era: Era::Legacy,
    }
}
