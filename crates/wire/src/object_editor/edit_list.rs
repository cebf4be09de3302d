//! Pending edits: two without an allocation, as most texts need no more.

use crate::splice::ByteEdit;

#[derive(Clone, Debug)]
pub(super) enum EditList<'a> {
    Few {
        edits: [ByteEdit<'a>; 2],
        len: usize,
    },
    Many(Vec<ByteEdit<'a>>),
}

impl Default for EditList<'_> {
    fn default() -> Self {
        Self::Few {
            edits: [ByteEdit::default(), ByteEdit::default()],
            len: 0,
        }
    }
}

impl<'a> EditList<'a> {
    pub(super) fn push(&mut self, edit: ByteEdit<'a>) {
        match self {
            Self::Few { edits, len } => match edits.get_mut(*len) {
                Some(slot) => {
                    *slot = edit;
                    *len += 1;
                }
                None => {
                    let mut many = Vec::with_capacity(8);
                    many.extend(edits.iter_mut().map(std::mem::take));
                    many.push(edit);
                    *self = Self::Many(many);
                }
            },
            Self::Many(edits) => edits.push(edit),
        }
    }

    pub(super) fn as_slice(&self) -> &[ByteEdit<'a>] {
        match self {
            Self::Few { edits, len } => edits.get(..*len).unwrap_or_default(),
            Self::Many(edits) => edits,
        }
    }

    /// Sorts by position. An insertion precedes a removal at the same position, and insertions
    /// keep their order.
    pub(super) fn sorted(&mut self) -> &[ByteEdit<'a>] {
        let edits = match self {
            Self::Few { edits, len } => edits.get_mut(..*len).unwrap_or_default(),
            Self::Many(edits) => edits,
        };
        edits.sort_by_key(|edit| (edit.at.start, edit.at.end));
        edits
    }
}
