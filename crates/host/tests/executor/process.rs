//! Servers that an executor runs: real processes, over connections that are cut.

mod cuts;
mod ends;
mod links;
mod placed;
mod rig;
