//! The executor service between a scripted gateway and upstream servers on real sockets.

mod cancellation;
mod connection_setup;
mod egress_policy;
mod joined_pair;
mod service_bounds;
mod service_faults;
mod service_rig;
mod service_sessions;
mod serving;
