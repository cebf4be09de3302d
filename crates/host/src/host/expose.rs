//! Finds tools of a large set for whoever may see them.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::call::{Call, Principal, Reply, Scope, Subject};
use bowline_core::error::CallError;
use bowline_core::policy::Expose;

use super::Host;
use super::view::sees;
use crate::catalog::{Item, ListKind};
use crate::expose::{self, Exposed, Found, Index, Meta};

impl Host {
    /// Returns the tools that fit `query` best among those that `principal` sees in `scope`, the
    /// best first.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let desk = Toolbox::default()
    ///     .with(("now", "Tells the time."), &json!({}), |_, _| async {
    ///         Ok(ToolOutput::of_text("noon"))
    ///     })
    ///     .with(("file", "Puts a letter away."), &json!({}), |_, _| async {
    ///         Ok(ToolOutput::of_text("done"))
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
    ) -> Vec<Found> {
        let scope = Scope::All;
        self.settled().await;
        self.shown_to(principal, &scope).await;
        let sees = self.seeing(principal, &scope);
        self.index().find(query, found_max, sees)
    }

    /// Returns how much of its tools `principal` is shown in `scope`.
    #[must_use]
    pub fn exposed(&self, principal: &Principal, scope: &Scope) -> Exposed {
        let sees = self.seeing(principal, scope);
        let catalog = self.catalog();
        let all = catalog.filtered(scope, ListKind::Tools, sees);
        let listed = self.view(principal, scope, ListKind::Tools);
        Exposed {
            expose: self.policy().exposure().expose,
            tools: all.count(ListKind::Tools),
            bytes: all.result.len(),
            listed: listed.count(ListKind::Tools),
            listed_bytes: listed.result.len(),
        }
    }

    /// Returns what a call with these parameters is for: the tool that `call_tool` names, where
    /// that one is offered, and else what it names itself.
    #[must_use]
    pub fn meant<'a>(
        &self,
        scope: &Scope,
        subject: &'a Subject,
        params: &[u8],
    ) -> Cow<'a, Subject> {
        let offered = || self.path.decider.policy().exposure().expose != Expose::All;
        match Meta::named(scope, subject) {
            Some(Meta::Call) if offered() => expose::tool_in(params)
                .map_or(Cow::Borrowed(subject), |tool| {
                    Cow::Owned(Subject::Tool(tool))
                }),
            _ => Cow::Borrowed(subject),
        }
    }

    /// Answers a call of one of the tools that find others; nothing where they are not offered.
    pub(super) async fn by_finding(
        &self,
        meta: Meta,
        call: &Call,
    ) -> Option<Result<Reply, CallError>> {
        if self.path.decider.policy().exposure().expose == Expose::All {
            return None;
        }
        let (principal, scope) = (&call.principal, &call.scope);
        if meta == Meta::Call {
            return Some(match expose::inner(call) {
                Some(inner) => self.path.call(&inner).await,
                None => Ok(expose::no_call(call)),
            });
        }
        self.shown_to(principal, scope).await;
        let sees = self.seeing(principal, scope);
        Some(Ok(match meta {
            Meta::Find => expose::find(call, &self.index(), sees),
            Meta::Describe | Meta::Call => expose::describe(call, &self.catalog(), sees),
        }))
    }

    /// Says what somebody sees, by the rules of this moment.
    fn seeing<'a>(
        &self,
        principal: &'a Principal,
        scope: &'a Scope,
    ) -> impl Fn(&Item) -> bool + use<'a> {
        let sight = self.path.decider.sight();
        let all = sight.all(principal, scope);
        move |item| all || sees(&sight, (principal, scope), ListKind::Tools, item)
    }

    /// Returns the index of the catalog as it is now, which is built by who needs it first.
    fn index(&self) -> Arc<Index> {
        let catalog = self.catalog();
        if let Some(index) = self.found.load_full()
            && index.version == catalog.version
        {
            return index;
        }
        let index = Arc::new(Index::build(&catalog));
        self.found.store(Some(Arc::clone(&index)));
        index
    }
}
