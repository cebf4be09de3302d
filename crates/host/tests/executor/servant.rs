//! What an executor does, seen from both sides: a gateway that says frame by frame what it wants,
//! and servers on real sockets.

mod both;
mod bounds;
mod doors;
mod ending;
mod faults;
mod policy;
mod rig;
mod serving;
mod sessions;
