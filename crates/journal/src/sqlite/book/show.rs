//! Shows lanes and messages.

use bytes::Bytes;

use super::Book;
use crate::engine::{At, Entry, Filter, Lane, LaneView, MessageId, SHOWN_BYTES_MAX, Standing};
use crate::sqlite::fault::{Fault, damaged};
use crate::sqlite::rows::Slot;

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
        let damage = self.damage(filter, at)?;
        let after = filter.after.map_or(0, |id| id.0.saturating_add(1));
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        for slot in self.messages.range(after..).map(|(_, slot)| slot) {
            let is_asked = slot.lane.as_str().starts_with(&filter.lanes)
                && filter.dead.is_none_or(|dead| dead == slot.dead.is_some());
            if !is_asked {
                continue;
            }
            bytes += slot.body_bytes;
            let is_much = bytes > SHOWN_BYTES_MAX && !entries.is_empty();
            if entries.len() >= filter.limit || is_much {
                break;
            }
            entries.push(match self.shown(slot, at) {
                Err(Fault::Refused(_)) => Entry {
                    standing: Standing::Damaged,
                    ..self.outline(slot, at)
                },
                shown => shown?,
            });
        }
        entries.extend(damage);
        entries.sort_unstable_by_key(|entry| entry.id);
        entries.truncate(filter.limit);
        Ok(entries)
    }

    /// Reads the lanes that were asked for, and returns an entry for each row of theirs that
    /// cannot be read. Refuses where one is gone without a trace.
    fn damage(&mut self, filter: &Filter, at: At) -> Result<Vec<Entry>, Fault> {
        let mut damage = Vec::new();
        for lane in self.load_prefix(&filter.lanes)? {
            let Some(loaded) = self.loaded.get(&lane) else {
                continue;
            };
            if loaded.missing > 0 {
                loaded.check(&lane)?;
            }
            let after = filter.after.map_or(0, |id| id.0.saturating_add(1));
            let damaged = loaded.damaged.range(after..);
            damage.extend(damaged.map(|id| Entry {
                id: MessageId(*id),
                lane: lane.clone(),
                dedupe: "".into(),
                standing: Standing::Damaged,
                position: 0,
                body: Bytes::new(),
                attempts: 0,
                stored_unix_ms: at.unix_ms,
                expires_unix_ms: None,
            }));
        }
        Ok(damage)
    }

    /// Returns a message as it is shown.
    pub(super) fn shown(&self, slot: &Slot, at: At) -> Result<Entry, Fault> {
        let body = self.body(slot)?;
        Ok(Entry {
            body,
            ..self.outline(slot, at)
        })
    }

    /// The same without its body.
    fn outline(&self, slot: &Slot, at: At) -> Entry {
        let loaded = self.loaded.get(&slot.lane);
        let (standing, position) = match &slot.dead {
            Some(reason) => (Standing::Dead(reason.clone()), 0),
            None => {
                let standing = match self.is_held(slot.id, at) {
                    true => Standing::Held,
                    false => Standing::Waiting,
                };
                (standing, loaded.map_or(0, |one| one.position(slot.place)))
            }
        };
        Entry {
            id: MessageId(slot.id),
            lane: slot.lane.clone(),
            dedupe: slot.dedupe.clone(),
            standing,
            position,
            body: Bytes::new(),
            attempts: self.attempts(slot),
            stored_unix_ms: slot.stored_unix_ms,
            expires_unix_ms: slot.expires_unix_ms,
        }
    }
}
