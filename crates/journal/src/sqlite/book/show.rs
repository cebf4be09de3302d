//! Shows lanes and messages.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Book;
use crate::engine::{At, Entry, Filter, Lane, LaneView, MessageId, SHOWN_BYTES_MAX, Standing};
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::{LaneRow, Slot};

/// Lanes with up to so many rows together are shown from their checked index; more are read in
/// the order of their numbers, where a row that went since its lane was read is not missed.
const BY_LANE_ROWS_MAX: u64 = 2_000;

impl Book {
    pub(in crate::sqlite) fn lane_bytes(&self, prefix: &str) -> Result<Vec<(Lane, u64)>, Fault> {
        Ok(Slot::lane_bytes(&self.conn, prefix)?)
    }

    pub(in crate::sqlite) fn lane_views(&self, prefix: &str) -> Result<Vec<LaneView>, Fault> {
        if self.lanes_suspect {
            return Err(damaged("the row of a lane").into());
        }
        let lanes = self.lanes.iter();
        let mut views: Vec<_> = lanes
            .filter(|(lane, _)| lane.as_str().starts_with(prefix))
            .map(|(lane, row)| LaneView {
                lane: lane.clone(),
                waiting: row.waiting,
                dead: row.dead,
                oldest_unix_ms: row.oldest,
            })
            .collect();
        views.sort_unstable_by(|a, b| a.lane.cmp(&b.lane));
        Ok(views)
    }

    pub(in crate::sqlite) fn entry(
        &mut self,
        id: MessageId,
        at: At,
    ) -> Result<Option<Entry>, Fault> {
        match self.find(id.0)? {
            Some(slot) => self.shown(&slot, at).map(Some),
            None => Ok(None),
        }
    }

    pub(in crate::sqlite) fn inspect(
        &mut self,
        filter: &Filter,
        at: At,
    ) -> Result<Vec<Entry>, Fault> {
        if self.lanes_suspect {
            return Err(damaged("the row of a lane").into());
        }
        let lanes = self.load_prefix(&filter.lanes, None)?;
        let damage = self.damage(&lanes, filter, at)?;
        let rows = lanes.iter().filter_map(|lane| self.lanes.get(lane));
        let slots = match rows.map(LaneRow::count).sum::<u64>() {
            0..=BY_LANE_ROWS_MAX => self.select_by_lane(&lanes, filter)?,
            _ => self.select_by_number(filter)?,
        };
        let mut entries: Vec<Entry> = Vec::new();
        for slot in slots {
            let shown = match slot {
                Ok(slot) => match self.shown(&slot, at) {
                    Err(Fault::Refused(_)) => Entry {
                        standing: Standing::Damaged,
                        ..self.outline(&slot, at)?
                    },
                    shown => shown?,
                },
                Err((lane, id)) => unreadable(lane, id, at),
            };
            entries.push(shown);
        }
        entries.extend(damage);
        entries.sort_unstable_by_key(|entry| entry.id);
        entries.truncate(filter.limit);
        Ok(entries)
    }

    /// Picks the messages to be shown out of lanes that are read whole.
    fn select_by_lane(&mut self, lanes: &[Lane], filter: &Filter) -> Result<Vec<Selected>, Fault> {
        let mut slots = BTreeMap::new();
        for lane in lanes {
            let segments = self.loaded.get(lane).map(|loaded| &loaded.segments);
            let firsts = segments.into_iter().flatten().map(|one| one.first);
            for first in firsts.collect::<Vec<_>>() {
                self.window(lane, first)?;
                let rows = self.windows.slots_of(lane, first);
                let asked = rows.filter(|slot| is_asked(slot, filter));
                slots.extend(asked.map(|slot| (slot.id, slot.clone())));
            }
        }
        let mut room = Room::new(filter);
        let slots = slots.into_values().take_while(|slot| room.take(slot));
        Ok(slots.map(Ok).collect())
    }

    /// Picks them out of all messages, in the order of their numbers.
    fn select_by_number(&self, filter: &Filter) -> Result<Vec<Selected>, Fault> {
        let (mut selected, mut room) = (Vec::new(), Room::new(filter));
        let after = filter.after.map_or(0, |id| id.0);
        let is_known = |id| self.loaded.values().any(|one| one.damaged.contains(&id));
        Slot::each(&self.conn, after, |read| match read {
            Ok((slot, _)) if !is_asked(&slot, filter) => true,
            Ok((slot, _)) => {
                let fits = room.take(&slot);
                selected.extend(fits.then_some(Ok(slot)));
                fits
            }
            Err(id) => {
                // One that was damaged before is shown in any case.
                let lane = Slot::lane_of(&self.conn, id).ok().flatten();
                let lane = lane.filter(|lane| lane.as_str().starts_with(&filter.lanes));
                let new = lane.filter(|_| !is_known(id));
                selected.extend(new.map(|lane| Err((lane, id))));
                true
            }
        })?;
        Ok(selected)
    }

    /// Returns an entry for each row of these lanes that cannot be read. Refuses where one is gone
    /// without a trace.
    fn damage(&self, lanes: &[Lane], filter: &Filter, at: At) -> Result<Vec<Entry>, Fault> {
        let mut damage = Vec::new();
        for lane in lanes {
            let Some(loaded) = self.loaded.get(lane) else {
                continue;
            };
            if loaded.missing > 0 {
                loaded.check(lane)?;
            }
            let after = filter.after.map_or(0, |id| id.0.saturating_add(1));
            let damaged = loaded.damaged.range(after..);
            damage.extend(damaged.map(|id| unreadable(lane.clone(), *id, at)));
        }
        Ok(damage)
    }

    /// Returns a message as it is shown.
    pub(super) fn shown(&mut self, slot: &Slot, at: At) -> Result<Entry, Fault> {
        let body = self.body(slot)?;
        Ok(Entry {
            body,
            ..self.outline(slot, at)?
        })
    }

    /// The same without its body.
    fn outline(&mut self, slot: &Slot, at: At) -> Result<Entry, Fault> {
        let (standing, position) = match &slot.dead {
            Some(reason) => (Standing::Dead(reason.clone()), 0),
            None => {
                let standing = match self.is_held(slot.id, at) {
                    true => Standing::Held,
                    false => Standing::Waiting,
                };
                (standing, self.position(slot)?)
            }
        };
        Ok(Entry {
            id: MessageId(slot.id),
            lane: slot.lane.clone(),
            dedupe: slot.dedupe.clone(),
            standing,
            position,
            body: Bytes::new(),
            attempts: self.attempts(slot),
            stored_unix_ms: slot.stored_unix_ms,
            expires_unix_ms: slot.expires_unix_ms,
        })
    }
}

/// A message to be shown, or the lane and number of one that cannot be read.
type Selected = Result<Slot, (Lane, u64)>;

/// How much more can be shown.
struct Room {
    left: usize,
    bytes: u64,
}

impl Room {
    const fn new(filter: &Filter) -> Self {
        Self {
            left: filter.limit,
            bytes: 0,
        }
    }

    /// Counts a message, and returns whether there is room for it.
    fn take(&mut self, slot: &Slot) -> bool {
        let is_first = self.bytes == 0;
        self.bytes = self.bytes.saturating_add(slot.body_bytes.max(1));
        let fits = self.left > 0 && (is_first || self.bytes <= SHOWN_BYTES_MAX);
        self.left = self.left.saturating_sub(1);
        fits
    }
}

fn is_asked(slot: &Slot, filter: &Filter) -> bool {
    slot.lane.as_str().starts_with(&filter.lanes)
        && filter.after.is_none_or(|after| slot.id > after.0)
        && filter.dead.is_none_or(|dead| dead == slot.dead.is_some())
}

fn unreadable(lane: Lane, id: u64, at: At) -> Entry {
    Entry {
        id: MessageId(id),
        lane,
        dedupe: "".into(),
        standing: Standing::Damaged,
        position: 0,
        body: Bytes::new(),
        attempts: 0,
        stored_unix_ms: at.unix_ms,
        expires_unix_ms: None,
    }
}
