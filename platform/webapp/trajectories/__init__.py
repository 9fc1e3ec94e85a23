"""Groups, trajectories, turns and tool calls as rows. Token ids stay in the run folder, found by (file, row)."""
