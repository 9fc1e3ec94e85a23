"""What an API token may be allowed to do, each scope with its meaning: for permission checks, forms and docs."""

SCOPES = {
    "runs:read": "see runs, series, logs, recipes and datasets",
    "runs:write": "create runs, recipes",
    "runs:control": "pause, resume, stop, checkpoint, kill runs",
    "trajectories:read": "see trajectories and tool calls",
    "datasets:write": "upload datasets",
    "tokens:manage": "create and revoke API tokens",
}
