"""The WebSocket of a run: a snapshot with a cursor, then only what changed."""
