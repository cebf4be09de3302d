//! Runs the contract suite on every engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_journal::contract::EngineFactory;
use bowline_journal::{Journal, MemoryJournal, SqliteJournal, journal_contract};
use tempfile::TempDir;

struct MemoryFactory;

impl EngineFactory for MemoryFactory {
    fn open_journal(&self) -> BoxFuture<'_, Arc<dyn Journal>> {
        Box::pin(async { Arc::new(MemoryJournal::default()) as Arc<dyn Journal> })
    }

    fn is_durable(&self) -> bool {
        false
    }
}

struct SqliteFactory(TempDir);

impl EngineFactory for SqliteFactory {
    fn open_journal(&self) -> BoxFuture<'_, Arc<dyn Journal>> {
        let path = self.0.path().join("state.db");
        let opened = SqliteJournal::open(&path).unwrap();
        Box::pin(async { Arc::new(opened) as Arc<dyn Journal> })
    }

    fn is_durable(&self) -> bool {
        true
    }
}

mod memory {
    use super::*;

    journal_contract!(MemoryFactory);
}

mod sqlite {
    use super::*;

    journal_contract!(SqliteFactory(TempDir::new().unwrap()));
}
