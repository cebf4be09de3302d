//! Queries for lanes and messages.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::JournalState;
use crate::engine::{
    LISTED_BYTES_MAX, LaneName, LaneStats, MessageFilter, MessageId, MessageStatus, MessageView,
    Timestamps,
};
use crate::sqlite::rows::{LaneRow, MessageRow};
use crate::sqlite::sqlite_error::{OperationError, damaged_error};

/// Lanes with up to this many rows are listed from their verified index. Beyond, rows are scanned
/// by number, which also finds rows lost since the lane was loaded.
const BY_LANE_ROWS_MAX: u64 = 2_000;

impl JournalState {
    pub(in crate::sqlite) fn lane_bytes(
        &self,
        prefix: &str,
    ) -> Result<Vec<(LaneName, u64)>, OperationError> {
        Ok(MessageRow::lane_bytes(&self.conn, prefix)?)
    }

    pub(in crate::sqlite) fn lane_stats(
        &self,
        prefix: &str,
    ) -> Result<Vec<LaneStats>, OperationError> {
        if self.lane_rows_suspect {
            return Err(damaged_error("the row of a lane").into());
        }
        let lanes = self.lanes.iter();
        let mut views: Vec<_> = lanes
            .filter(|(lane, _)| lane.as_str().starts_with(prefix))
            .map(|(lane, row)| LaneStats {
                lane: lane.clone(),
                queued: row.waiting,
                dead_letters: row.dead,
                oldest_unix_ms: row.oldest,
            })
            .collect();
        views.sort_unstable_by(|a, b| a.lane.cmp(&b.lane));
        Ok(views)
    }

    pub(in crate::sqlite) fn get_message(
        &mut self,
        id: MessageId,
        at: Timestamps,
    ) -> Result<Option<MessageView>, OperationError> {
        match self.find_message(id.0)? {
            Some(slot) => self.read_view(&slot, at).map(Some),
            None => Ok(None),
        }
    }

    pub(in crate::sqlite) fn list_messages(
        &mut self,
        filter: &MessageFilter,
        at: Timestamps,
    ) -> Result<Vec<MessageView>, OperationError> {
        if self.lane_rows_suspect {
            return Err(damaged_error("the row of a lane").into());
        }
        let lanes = self.load_lanes(&filter.lanes, None)?;
        let damage = self.damaged_views(&lanes, filter, at)?;
        let rows = lanes.iter().filter_map(|lane| self.lanes.get(lane));
        let slots = match rows.map(LaneRow::count).sum::<u64>() {
            0..=BY_LANE_ROWS_MAX => self.select_by_lane(&lanes, filter)?,
            _ => self.select_by_id(filter)?,
        };
        let mut entries: Vec<MessageView> = Vec::new();
        for slot in slots {
            let view = match slot {
                Ok(slot) => match self.read_view(&slot, at) {
                    Err(OperationError::Refused(_)) => MessageView {
                        status: MessageStatus::Damaged,
                        ..self.view_without_body(&slot, at)?
                    },
                    view => view?,
                },
                Err((lane, id)) => damaged_view(lane, id, at),
            };
            entries.push(view);
        }
        entries.extend(damage);
        entries.sort_unstable_by_key(|entry| entry.id);
        entries.truncate(filter.limit);
        Ok(entries)
    }

    /// Selects messages from fully loaded lanes.
    fn select_by_lane(
        &mut self,
        lanes: &[LaneName],
        filter: &MessageFilter,
    ) -> Result<Vec<SelectedRow>, OperationError> {
        let mut slots = BTreeMap::new();
        for lane in lanes {
            let segments = self.lane_indexes.get(lane).map(|loaded| &loaded.segments);
            let firsts = segments.into_iter().flatten().map(|one| one.first_place);
            for first in firsts.collect::<Vec<_>>() {
                self.load_segment(lane, first)?;
                let rows = self.segment_cache.segment_rows(lane, first);
                let selected = rows.filter(|slot| is_selected(slot, filter));
                slots.extend(selected.map(|slot| (slot.id, slot.clone())));
            }
        }
        let mut room = PageBudget::new(filter);
        let slots = slots.into_values().take_while(|slot| room.admit(slot));
        Ok(slots.map(Ok).collect())
    }

    /// Selects messages from a scan of all messages, in order of number.
    fn select_by_id(&self, filter: &MessageFilter) -> Result<Vec<SelectedRow>, OperationError> {
        let (mut selected, mut room) = (Vec::new(), PageBudget::new(filter));
        let after = filter.after.map_or(0, |id| id.0);
        let is_known = |id| {
            self.lane_indexes
                .values()
                .any(|one| one.damaged.contains(&id))
        };
        MessageRow::visit_all(&self.conn, after, |read| match read {
            Ok((slot, _)) if !is_selected(&slot, filter) => true,
            Ok((slot, _)) => {
                let fits = room.admit(&slot);
                selected.extend(fits.then_some(Ok(slot)));
                fits
            }
            Err(id) => {
                // Rows known as damaged are listed by `damaged_views`.
                let lane = MessageRow::claimed_lane(&self.conn, id).ok().flatten();
                let lane = lane.filter(|lane| lane.as_str().starts_with(&filter.lanes));
                let new = lane.filter(|_| !is_known(id));
                selected.extend(new.map(|lane| Err((lane, id))));
                true
            }
        })?;
        Ok(selected)
    }

    /// Returns a view per unreadable row of the lanes. Fails if a row was lost without a trace.
    fn damaged_views(
        &self,
        lanes: &[LaneName],
        filter: &MessageFilter,
        at: Timestamps,
    ) -> Result<Vec<MessageView>, OperationError> {
        let mut damage = Vec::new();
        for lane in lanes {
            let Some(loaded) = self.lane_indexes.get(lane) else {
                continue;
            };
            if loaded.missing > 0 {
                loaded.check_intact(lane)?;
            }
            let after = filter.after.map_or(0, |id| id.0.saturating_add(1));
            let damaged = loaded.damaged.range(after..);
            damage.extend(damaged.map(|id| damaged_view(lane.clone(), *id, at)));
        }
        Ok(damage)
    }

    /// Returns the view of a message, with the body.
    pub(super) fn read_view(
        &mut self,
        slot: &MessageRow,
        at: Timestamps,
    ) -> Result<MessageView, OperationError> {
        let body = self.read_body(slot)?;
        Ok(MessageView {
            body,
            ..self.view_without_body(slot, at)?
        })
    }

    /// Returns the view without reading the body.
    fn view_without_body(
        &mut self,
        slot: &MessageRow,
        at: Timestamps,
    ) -> Result<MessageView, OperationError> {
        let (status, position) = match &slot.dead {
            Some(reason) => (MessageStatus::DeadLetter(reason.clone()), 0),
            None => {
                let status = match self.is_leased(slot.id, at) {
                    true => MessageStatus::Leased,
                    false => MessageStatus::Queued,
                };
                (status, self.queue_position(slot)?)
            }
        };
        Ok(MessageView {
            id: MessageId(slot.id),
            lane: slot.lane.clone(),
            dedupe: slot.dedupe.clone(),
            status,
            position,
            body: Bytes::new(),
            attempts: self.total_attempts(slot),
            stored_unix_ms: slot.stored_unix_ms,
            expires_unix_ms: slot.expires_unix_ms,
        })
    }
}

/// Selected message, or the lane and number of an unreadable message.
type SelectedRow = Result<MessageRow, (LaneName, u64)>;

/// Remaining messages and bytes of a page.
struct PageBudget {
    left: usize,
    bytes: u64,
}

impl PageBudget {
    const fn new(filter: &MessageFilter) -> Self {
        Self {
            left: filter.limit,
            bytes: 0,
        }
    }

    /// Counts a message and returns whether the page has room.
    fn admit(&mut self, slot: &MessageRow) -> bool {
        let is_first = self.bytes == 0;
        self.bytes = self.bytes.saturating_add(slot.body_bytes.max(1));
        let fits = self.left > 0 && (is_first || self.bytes <= LISTED_BYTES_MAX);
        self.left = self.left.saturating_sub(1);
        fits
    }
}

fn is_selected(slot: &MessageRow, filter: &MessageFilter) -> bool {
    slot.lane.as_str().starts_with(&filter.lanes)
        && filter.after.is_none_or(|after| slot.id > after.0)
        && filter.dead.is_none_or(|dead| dead == slot.dead.is_some())
}

fn damaged_view(lane: LaneName, id: u64, at: Timestamps) -> MessageView {
    MessageView {
        id: MessageId(id),
        lane,
        dedupe: "".into(),
        status: MessageStatus::Damaged,
        position: 0,
        body: Bytes::new(),
        attempts: 0,
        stored_unix_ms: at.unix_ms,
        expires_unix_ms: None,
    }
}
