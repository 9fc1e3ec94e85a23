"""The engine's public door: jobs, events, commands, trajectories. pydantic and the standard library only."""
