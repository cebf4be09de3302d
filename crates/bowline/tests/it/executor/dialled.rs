//! Executors that listen, and are dialled by the gateway.
