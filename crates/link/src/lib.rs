//! How bytes travel: one link per live connection to a server.
