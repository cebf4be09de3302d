//! Tests of the event stream.
