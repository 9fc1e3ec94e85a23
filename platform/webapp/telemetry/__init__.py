"""What engines say: ingest (events to rows, exactly once), series, log lines, and what changed since a cursor."""
