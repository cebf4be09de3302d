//! What an executor does, seen from both sides: a gateway that says frame by frame what it wants,
//! and servers on real sockets.

mod rig;
mod serving;
