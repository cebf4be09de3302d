//! What is remembered: lanes, mailboxes, results and the audit chain. Nothing is remembered yet; see docs/ARCHITECTURE.md.
