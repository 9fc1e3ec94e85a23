"""How engines get started: the ``Launcher`` seam. Whoever launches never hosts the engine and never waits for it.

``webapp.machine.local_launcher`` asks the agent of this machine. The launcher of this installation is named by
``settings.LAUNCHER``. Leaves out what an engine is told (``services.job_of``) and its events.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from django.conf import settings
from django.utils.module_loading import import_string


class LaunchFailed(Exception):
    """The engine could not be started for a reason of ours (agent not reachable, no room): worth another try."""


@dataclass(frozen=True)
class Launch:
    """One start of a run's engine. Starting the same (run_id, number) twice starts one engine."""

    run_id: str
    number: int
    folder: Path
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables for the engine, the run token among them: never on a command line."""


class Launcher(Protocol):
    """Starts engines and sees whether they live."""

    def start(self, launch: Launch) -> None:
        """Start the engine, or find it started; returns at once. Raises ``LaunchFailed``."""
        ...

    def is_alive(self, run_id: str, number: int) -> bool | None:
        """Whether that launch's engine lives; None when it cannot be told now."""
        ...

    def kill(self, run_id: str, number: int) -> None:
        """Kill that launch's engine with all its processes; quietly does nothing when it is gone."""
        ...


def launcher() -> Launcher:
    """The launcher of this installation."""
    made: Launcher = import_string(settings.LAUNCHER)()
    return made
