//! Queries of an in-memory journal: lanes, messages and results.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{MemoryMessage, MemoryTable};
use crate::engine::{
    CompletedMessage, LISTED_BYTES_MAX, LaneName, LaneStats, MessageFilter, MessageId,
    MessageStatus, MessageView, Timestamps,
};

impl MemoryTable {
    pub(in crate::memory) fn lane_bytes(&self, prefix: &str) -> Vec<(LaneName, u64)> {
        let mut bytes: BTreeMap<LaneName, u64> = BTreeMap::new();
        for stored in self.messages.values() {
            let lane = &stored.draft.lane;
            if lane.as_str().starts_with(prefix) {
                *bytes.entry(lane.clone()).or_default() += stored.draft.body.len() as u64;
            }
        }
        bytes.into_iter().collect()
    }

    pub(in crate::memory) fn lane_stats(&self, prefix: &str) -> Vec<LaneStats> {
        let mut views: BTreeMap<LaneName, LaneStats> = BTreeMap::new();
        for stored in self.messages.values() {
            let lane = &stored.draft.lane;
            if !lane.as_str().starts_with(prefix) {
                continue;
            }
            let view = views.entry(lane.clone()).or_insert_with(|| LaneStats {
                lane: lane.clone(),
                queued: 0,
                dead_letters: 0,
                oldest_unix_ms: None,
            });
            match stored.dead {
                Some(_) => view.dead_letters += 1,
                None => view.queued += 1,
            }
        }
        for view in views.values_mut() {
            let first = self
                .lanes
                .get(&view.lane)
                .and_then(BTreeMap::first_key_value);
            let first = first.and_then(|(_, id)| self.messages.get(id));
            view.oldest_unix_ms = first.map(|first| first.stored_unix_ms);
        }
        views.into_values().collect()
    }

    pub(in crate::memory) fn list_messages(
        &self,
        filter: &MessageFilter,
        at: Timestamps,
    ) -> Vec<MessageView> {
        let after = filter.after.map_or(0, |id| id.0.saturating_add(1));
        let mut bytes = 0;
        self.messages
            .range(MessageId(after)..)
            .filter(|(_, one)| one.draft.lane.as_str().starts_with(&filter.lanes))
            .filter(|(_, one)| filter.dead.is_none_or(|dead| dead == one.dead.is_some()))
            .take(filter.limit)
            .take_while(|(_, one)| {
                let is_first = bytes == 0;
                bytes += one.draft.body.len() as u64;
                is_first || bytes <= LISTED_BYTES_MAX
            })
            .map(|(id, one)| self.to_view(*id, one, at))
            .collect()
    }

    pub(in crate::memory) fn get_message(
        &self,
        id: MessageId,
        at: Timestamps,
    ) -> Option<MessageView> {
        Some(self.to_view(id, self.messages.get(&id)?, at))
    }

    fn to_view(&self, id: MessageId, stored: &MemoryMessage, at: Timestamps) -> MessageView {
        let status = match &stored.dead {
            Some(reason) => MessageStatus::DeadLetter(Arc::clone(reason)),
            None if stored.is_leased(at) => MessageStatus::Leased,
            None => MessageStatus::Queued,
        };
        let position = match stored.dead {
            Some(_) => 0,
            None => self.position(stored),
        };
        MessageView {
            id,
            lane: stored.draft.lane.clone(),
            dedupe: Arc::clone(&stored.draft.dedupe),
            status,
            position,
            body: stored.draft.body.clone(),
            attempts: stored.attempts,
            stored_unix_ms: stored.stored_unix_ms,
            expires_unix_ms: stored.expires_unix_ms,
        }
    }

    pub(in crate::memory) fn get_result(
        &self,
        lane: &LaneName,
        dedupe: &str,
    ) -> Option<CompletedMessage> {
        let key = (lane.clone(), Arc::from(dedupe));
        self.completed.get(&key).map(|(_, done)| done.clone())
    }
}
