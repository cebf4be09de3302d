//! What is said: JSON-RPC envelopes over raw bytes, the MCP revisions, SSE, canonical JSON.
