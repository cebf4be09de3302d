//! What is decided, without side effects: every module is a value or a machine that is told the time.
