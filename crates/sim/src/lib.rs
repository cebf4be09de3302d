//! The world in a box, for tests: virtual clock and scripted servers.
