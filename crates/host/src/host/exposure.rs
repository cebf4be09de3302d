//! Tool search for principals with a large tool set.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::call::{CallReply, CallRequest, CallSubject, EndpointScope, Principal};
use bowline_core::error::CallError;
use bowline_core::policy::ExposeMode;

use super::Host;
use super::principal_view::{Viewer, is_visible};
use crate::catalog::{CatalogItem, ListKind};
use crate::expose::{self, ExposureSummary, FoundTool, MetaTool, ToolSearchIndex};

impl Host {
    /// Returns the tools matching `query` best among those visible to `principal`, best first.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let desk = Toolbox::default()
    ///     .with("now", "Tells the time.", &json!({}), |_, _| async {
    ///         Ok(ToolOutput::from_text("noon"))
    ///     })
    ///     .with("file", "Puts a letter away.", &json!({}), |_, _| async {
    ///         Ok(ToolOutput::from_text("done"))
    ///     });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("desk", desk), SpawnOptions::default()).await?;
    /// let owner = Principal::new("me", Role::Owner);
    /// let found = host.find_tools(&owner, "what time is it?", 5).await;
    /// assert_eq!(found.len(), 1);
    /// assert_eq!(found[0].name, "desk__now");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn find_tools(
        &self,
        principal: &Principal,
        query: &str,
        found_max: usize,
    ) -> Vec<FoundTool> {
        let scope = EndpointScope::All;
        self.wait_settled().await;
        self.start_unlisted_for(principal, &scope).await;
        let sees = self.visibility_filter(principal, &scope);
        self.tool_search_index().search(query, found_max, sees)
    }

    /// Returns how many tools `principal` sees listed in `scope`.
    #[must_use]
    pub fn exposure_summary(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
    ) -> ExposureSummary {
        let sees = self.visibility_filter(principal, scope);
        let catalog = self.catalog();
        let all = catalog.filtered_list(scope, ListKind::Tools, sees);
        let listed = self.list_for(principal, scope, ListKind::Tools);
        ExposureSummary {
            expose: self.policy().exposure().expose,
            tools: all.count(ListKind::Tools),
            bytes: all.result.len(),
            listed: listed.count(ListKind::Tools),
            listed_bytes: listed.result.len(),
        }
    }

    /// Returns the effective subject of a call: the tool named by `call_tool` if the meta tools are
    /// active, else the subject itself.
    #[must_use]
    pub fn effective_subject<'a>(
        &self,
        scope: &EndpointScope,
        subject: &'a CallSubject,
        params: &[u8],
    ) -> Cow<'a, CallSubject> {
        let offered = || self.call_path.authorizer.policy().exposure().expose != ExposeMode::All;
        match MetaTool::from_subject(scope, subject) {
            Some(MetaTool::Call) if offered() => expose::wrapped_tool_name(params)
                .map_or(Cow::Borrowed(subject), |tool| {
                    Cow::Owned(CallSubject::Tool(tool))
                }),
            _ => Cow::Borrowed(subject),
        }
    }

    /// Handles a call of a meta tool; `None` if the meta tools are inactive.
    pub(super) async fn call_meta_tool(
        &self,
        meta: MetaTool,
        call: &CallRequest,
    ) -> Option<Result<CallReply, CallError>> {
        if self.call_path.authorizer.policy().exposure().expose == ExposeMode::All {
            return None;
        }
        let (principal, scope) = (&call.principal, &call.scope);
        if meta == MetaTool::Call {
            return Some(match expose::wrapped_call(call) {
                Some(inner) => self.call_path.call(&inner).await,
                None => Ok(expose::malformed_call_reply(call)),
            });
        }
        self.start_unlisted_for(principal, scope).await;
        let sees = self.visibility_filter(principal, scope);
        Some(Ok(match meta {
            MetaTool::Find => expose::handle_find(call, &self.tool_search_index(), sees),
            MetaTool::Describe | MetaTool::Call => {
                expose::handle_describe(call, &self.catalog(), sees)
            }
        }))
    }

    /// Returns a visibility predicate on a snapshot of the rules.
    fn visibility_filter<'a>(
        &self,
        principal: &'a Principal,
        scope: &'a EndpointScope,
    ) -> impl Fn(&CatalogItem) -> bool + use<'a> {
        let rules = self.call_path.authorizer.snapshot();
        let all = rules.can_see_all(principal, scope);
        let viewer = Viewer { principal, scope };
        move |item| all || is_visible(&rules, viewer, ListKind::Tools, item)
    }

    /// Returns the search index of the current catalog, built on first use.
    fn tool_search_index(&self) -> Arc<ToolSearchIndex> {
        let catalog = self.catalog();
        if let Some(index) = self.search_index.load_full()
            && index.version == catalog.version
        {
            return index;
        }
        let index = Arc::new(ToolSearchIndex::from_catalog(&catalog));
        self.search_index.store(Some(Arc::clone(&index)));
        index
    }
}
