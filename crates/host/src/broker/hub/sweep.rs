//! What the hub does by itself from time to time: ends what is past its time, and tells peers
//! whose view of the catalog is another now.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_core::call::Scope;
use bowline_core::mailbox::Mailbox;
use bowline_core::sync::lock;
use bowline_journal::Entry;
use bowline_wire::broker::{Answer, Frame, REQUEST, Said};

use super::counts::one;
use super::mailbox::{self, LANES};
use super::peers::Peer;
use super::{Shared, own};
use crate::broker::{Manifest, expired};
use crate::catalog::ListKind;

/// Ends what is past its time until the hub goes down.
pub(super) async fn run(shared: Arc<Shared>) {
    let closed = shared.closed();
    tokio::pin!(closed);
    loop {
        let next = shared.now().plus(shared.limits.sweep_every);
        tokio::select! {
            () = &mut closed => return,
            () = tokio::time::sleep_until(shared.clock().instant(next)) => {}
        }
        lock(&shared.peers).sweep(shared.now());
        if let Some(keep) = shared.offers.keep() {
            shared.offer_store.sweep(shared.now(), keep);
        }
        // Each look makes a bounded number of dead letters.
        while sweep(&shared).await > 0 {}
    }
}

async fn sweep(shared: &Shared) -> usize {
    let past = match shared.journal.expire(LANES, shared.at()).await {
        Ok(past) => past,
        Err(error) => {
            tracing::error!(%error, "mailboxes cannot be looked through");
            return 0;
        }
    };
    for entry in &past {
        one(&shared.counts.dead);
        answer(shared, entry).await;
    }
    past.len()
}

/// Tells whoever sent a request that it is past its time and was not carried out.
async fn answer(shared: &Shared, entry: &Entry) {
    let Some(mailbox::StoredMessage { letter, alias, .. }) = mailbox::read(&entry.body) else {
        return;
    };
    let from = letter
        .from
        .as_ref()
        .map(|from| Mailbox::parse(&from.session_id));
    let Some(Ok(from)) = from.filter(|_| &*letter.kind == REQUEST) else {
        return;
    };
    // Whoever was given it may have carried it out, and answers itself.
    if from == Mailbox::hub() || entry.attempts > 0 {
        return;
    }
    let mut body = Vec::new();
    Answer::Failed(expired()).write(Said::Whole, &mut body);
    if let Err(error) = own::reply(shared, &from, (&letter.id, alias.as_ref()), &body.into()).await
    {
        tracing::warn!(%from, %error, "that a request expired cannot be told");
    }
}

/// Tells peers whose view of the catalog changed, until the hub goes down.
pub(super) async fn tell_changes(shared: Arc<Shared>) {
    let (mut catalog, mut policy) = (shared.host.catalog_changes(), shared.host.policy_changes());
    let closed = shared.closed();
    tokio::pin!(closed);
    loop {
        tokio::select! {
            () = &mut closed => return,
            changed = catalog.changed() => if changed.is_err() { return },
            changed = policy.changed() => if changed.is_err() { return },
        }
        let here: Vec<_> = lock(&shared.peers).here().map(Arc::clone).collect();
        // Whoever sees the same has the same manifest.
        let mut revisions = HashMap::new();
        for peer in here {
            tell(&shared, &peer, &mut revisions).await;
        }
    }
}

async fn tell(shared: &Shared, peer: &Arc<Peer>, revisions: &mut HashMap<[u8; 32], u64>) {
    let principal = &peer.admitted.principal;
    let seen = shared
        .host
        .view(principal, &Scope::All, ListKind::Tools)
        .fingerprint;
    let before = std::mem::replace(&mut lock(&peer.books).seen, seen);
    if before == seen {
        return;
    }
    let revision = match revisions.get(&seen) {
        Some(revision) => *revision,
        None => {
            let manifest = shared.serving.manifest(&peer.stamp, Some(principal)).await;
            let Ok(Manifest { revision, .. }) = manifest else {
                return;
            };
            revisions.insert(seen, revision);
            revision
        }
    };
    let changed = Frame::Changed { revision };
    if peer.try_send(&changed) || std::mem::replace(&mut lock(&peer.books).telling, true) {
        return;
    }
    // It does not read; whoever waits for that keeps nobody else waiting. What it is told may be
    // older than what it then asks for.
    let peer = Arc::clone(peer);
    shared.tasks().spawn("peer change", async move {
        peer.send(&changed).await;
        lock(&peer.books).telling = false;
    });
}
