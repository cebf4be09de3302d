//! MCP requests of a hub to a worker's server, except tool calls.

use std::sync::Arc;

use bowline_broker::frames::{BrokerRequest, BrokerResponse, MessageSender};
use bowline_broker::mailbox::HUB;
use bowline_broker::{BackendRequest, failures};
use bowline_core::cache::CacheScope;
use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::era::Era;
use bowline_core::error::{CallError, FailureReport};
use bowline_core::log_level::LogLevel;
use bowline_core::time::to_millis;
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::host_backend::HostBackend;
use crate::catalog::{CatalogItem, CatalogList, ListKind};

/// Principal name of the hub. No local name contains a colon.
const HUB_PRINCIPAL: &str = "hub:";

/// Approximate size of a list page.
const PAGE_BYTES: usize = 1024 * 1024;

/// An MCP request of a hub.
#[derive(Clone, Copy, Debug)]
pub(super) struct HubMcpRequest<'a> {
    pub(super) server: &'a Arc<str>,
    pub(super) method: &'a str,
    pub(super) params: Option<&'a Bytes>,
}

/// Whether the hub is the sender: for lists, and for subscriptions on behalf of all hub
/// sessions. The hub stamps all peer senders.
pub(super) fn is_hub(from: &MessageSender) -> bool {
    *from.session_id == *HUB && from.principal.is_none() && from.role.is_none()
}

impl HostBackend {
    /// Handles a request.
    pub(super) async fn handle_mcp(
        &self,
        job: &BackendRequest,
        request: HubMcpRequest<'_>,
    ) -> BrokerResponse {
        let result = match ListKind::ALL
            .into_iter()
            .find(|kind| kind.method() == request.method)
        {
            Some(kind) => self.list_page(kind, request),
            None => match request.method {
                method::RESOURCES_SUBSCRIBE => self.subscribe_resource(job, request).await,
                method::RESOURCES_UNSUBSCRIBE => self.unsubscribe_resource(job, request).await,
                method::LOGGING_SET_LEVEL => self.set_log_level(job, request).await,
                method::TASKS_LIST => self.list_tasks(job, request).await,
                _ => return self.call_server(job).await,
            },
        };
        result.unwrap_or_else(BrokerResponse::Failed)
    }

    /// Returns a list page, to any sender: access is checked when an entry is used.
    fn list_page(
        &self,
        kind: ListKind,
        request: HubMcpRequest<'_>,
    ) -> Result<BrokerResponse, FailureReport> {
        let cursor = request
            .params
            .and_then(|params| object::text_field(params, "cursor"));
        let first = cursor.map_or(Ok(0), |cursor| cursor.parse::<usize>());
        let first = first.map_err(|_| failures::bad_request(&"the cursor is none of ours"))?;
        let host = self.host();
        let catalog = host.catalog();
        host.refresh_stale_lists(
            &catalog,
            &EndpointScope::Server(Arc::clone(request.server)),
            kind,
        );
        let list = catalog.server(request.server).map(|offer| offer.list(kind));
        let items: &[CatalogItem] = list.map_or(&[], |list| &list.items);
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
        // `resultType` tells the hub to rewrite the definitions for legacy clients.
        let era = list.map_or(Era::Legacy, CatalogList::era);
        if era == Era::Modern {
            page.extend_from_slice(b",\"resultType\":\"complete\"");
        }
        if let Some(hint) = list.and_then(|list| list.rendered.hint) {
            let scope = match hint.scope {
                CacheScope::Public => "public",
                CacheScope::Private => "private",
            };
            let end = list.and_then(CatalogList::expires_at);
            let left = end.map_or(hint.ttl, |end| host.clock().now().duration_until(end));
            let ttl_ms = to_millis(left);
            let hint = format!(",\"ttlMs\":{ttl_ms},\"cacheScope\":\"{scope}\"");
            page.extend_from_slice(hint.as_bytes());
        }
        page.push(b'}');
        Ok(BrokerResponse::Output {
            result: page.into(),
            from_journal: false,
            era,
        })
    }

    /// Subscribes the hub to a resource. For a peer sender, only checks whether the sender may
    /// subscribe.
    async fn subscribe_resource(
        &self,
        job: &BackendRequest,
        request: HubMcpRequest<'_>,
    ) -> Result<BrokerResponse, FailureReport> {
        let uri = text_param(request, "uri")?;
        let scope = EndpointScope::Server(Arc::clone(request.server));
        let session = self.enter_session(request.server, None)?;
        let outcome = match is_hub(&job.incoming.sender) {
            true => {
                let (principal, home) = (hub_principal(), session.session_handle());
                self.host().subscribe(&principal, &scope, &home, &uri).await
            }
            false => {
                let principal =
                    self.authorize_sender(&job.incoming.sender, job.incoming.principal.as_ref())?;
                self.host().check_subscribe(&principal, &scope, &uri).await
            }
        };
        Ok(empty_response(outcome))
    }

    async fn unsubscribe_resource(
        &self,
        job: &BackendRequest,
        request: HubMcpRequest<'_>,
    ) -> Result<BrokerResponse, FailureReport> {
        let uri = text_param(request, "uri")?;
        ensure_hub(job)?;
        let scope = EndpointScope::Server(Arc::clone(request.server));
        let session = self.enter_session(request.server, None)?;
        let host = self.host();
        let outcome = host
            .unsubscribe(&hub_principal(), &scope, session.key(), &uri)
            .await;
        Ok(empty_response(outcome))
    }

    async fn set_log_level(
        &self,
        job: &BackendRequest,
        request: HubMcpRequest<'_>,
    ) -> Result<BrokerResponse, FailureReport> {
        let level = text_param(request, "level")?;
        ensure_hub(job)?;
        let Some(level) = LogLevel::parse(&level) else {
            return Err(failures::bad_request(&"there is no such level"));
        };
        let scope = EndpointScope::Server(Arc::clone(request.server));
        let session = self.enter_session(request.server, None)?;
        let outcome = self
            .host()
            .set_log_level(&hub_principal(), &scope, session.key(), level)
            .await;
        Ok(empty_response(outcome))
    }

    async fn list_tasks(
        &self,
        job: &BackendRequest,
        request: HubMcpRequest<'_>,
    ) -> Result<BrokerResponse, FailureReport> {
        let principal =
            self.authorize_sender(&job.incoming.sender, job.incoming.principal.as_ref())?;
        let scope = EndpointScope::Server(Arc::clone(request.server));
        let outcome = self.host().list_tasks(&principal, &scope).await;
        Ok(outcome.map_or_else(|error| error_response(&error), result_response))
    }
}

fn hub_principal() -> Principal {
    Principal::new(HUB_PRINCIPAL, Role::OwnersAgent)
}

fn ensure_hub(job: &BackendRequest) -> Result<(), FailureReport> {
    match is_hub(&job.incoming.sender) {
        true => Ok(()),
        false => Err(failures::bad_request(&"this is for the hub to ask")),
    }
}

fn text_param(request: HubMcpRequest<'_>, key: &'static str) -> Result<String, FailureReport> {
    let text = request
        .params
        .and_then(|params| object::text_field(params, key));
    let text = text.map(Into::into);
    text.ok_or_else(|| failures::bad_request(&format!("`{key}` is missing")))
}

fn result_response(result: Bytes) -> BrokerResponse {
    BrokerResponse::Output {
        result,
        from_journal: false,
        era: Era::Legacy,
    }
}

fn empty_response(outcome: Result<(), CallError>) -> BrokerResponse {
    match outcome {
        Ok(()) => result_response(Bytes::from_static(b"{}")),
        Err(error) => error_response(&error),
    }
}

fn error_response(error: &CallError) -> BrokerResponse {
    match error {
        CallError::Refused { error, .. } => BrokerResponse::RpcError {
            error: error.clone(),
            era: Era::Legacy,
        },
        error => BrokerResponse::Failed(error.to_failure_report()),
    }
}

/// Returns the response to a request that no server answers.
pub(super) fn unknown_method(request: &BrokerRequest) -> BrokerResponse {
    let BrokerRequest::Mcp { method, .. } = request else {
        return BrokerResponse::Failed(failures::bad_request(&"it is no call"));
    };

    let mut error = format!("{{\"code\":{},\"message\":", code::METHOD_NOT_FOUND).into_bytes();
    write_string(&mut error, &format!("`{method}` does not go to a peer"));
    error.push(b'}');
    BrokerResponse::RpcError {
        error: error.into(),
        era: Era::Legacy,
    }
}
