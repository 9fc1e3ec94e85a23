"""Runs: the state machine, commands, launchers. ``services.py`` is the only writer of a run's state."""
