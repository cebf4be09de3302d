//! Every engine keeps every rule.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use bowline_journal::contract::Maker;
use bowline_journal::{BoxFuture, Journal, Memory, Sqlite, journal_contract};
use tempfile::TempDir;

struct InMemory;

impl Maker for InMemory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Journal>> {
        Box::pin(async { Arc::new(Memory::default()) as Arc<dyn Journal> })
    }

    fn is_kept(&self) -> bool {
        false
    }
}

struct OnDisk(TempDir);

impl Maker for OnDisk {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Journal>> {
        let path = self.0.path().join("state.db");
        let opened = Sqlite::open(&path).unwrap();
        Box::pin(async { Arc::new(opened) as Arc<dyn Journal> })
    }

    fn is_kept(&self) -> bool {
        true
    }
}

mod memory {
    use super::*;

    journal_contract!(InMemory);
}

mod sqlite {
    use super::*;

    journal_contract!(OnDisk(TempDir::new().unwrap()));
}
