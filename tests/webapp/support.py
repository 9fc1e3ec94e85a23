"""Rows and servers for tests of the platform, made as the platform makes them where that is not what is tested."""

import itertools
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.contract.job import Recipe
from webapp.accounts.models import Project, User
from webapp.machine.postgres import Postgres
from webapp.machine.processes import tail, tethered
from webapp.machine.valkey import ValkeyServer
from webapp.runs import services
from webapp.runs.models import Run

_numbers = itertools.count(1)
PASSWORD = "correct horse battery staple"

RECIPE = """
name = "sample"

[model]
kind = "tiny-qwen3"

[rollout]
kind = "scripted"

[[stages]]
name = "sft"
kind = "sft"
steps = 4
examples = 16
batch_size = 4

[[stages]]
name = "rl"
kind = "rl"
steps = 10
problems_per_step = 2
rollouts_per_problem = 4
keep_per_problem = 2
max_response_tokens = 256
max_logprob_gap = 1e9

[[stages]]
name = "eval"
kind = "eval"
count = 8
max_response_tokens = 256
"""


def make_user(username: str = "", **fields: Any) -> User:
    """Somebody whose password is ``PASSWORD``."""
    return User.objects.create_user(username or f"user{next(_numbers)}", password=PASSWORD, **fields)


def make_project(owner: User | None = None, name: str = "") -> Project:
    return Project.objects.create(owner=owner or make_user(), name=name or f"project {next(_numbers)}")


def make_run(project: Project | None = None, *, state: str = "queued", toml: str = RECIPE, **fields: Any) -> Run:
    """A run as ``create_run`` makes it, then put into ``state`` (with its first launch) without asking anybody."""
    project = project or make_project()
    recipe = Recipe.model_validate(tomllib.loads(toml))
    run = services.create_run(user=project.owner, project=project, recipe=recipe, toml=toml)
    if state != "queued":
        fields = {"launches": 1, "attempt": 1, **fields}
    for name, value in {"state": state, **fields}.items():
        setattr(run, name, value)
    run.save()
    return run


@contextmanager
def serving(server: Postgres | ValkeyServer, log: Path) -> Iterator[None]:
    """The server, from the moment it answers to the end of the block."""
    server.prepare(lambda said: None)
    with log.open("ab") as out:
        process = subprocess.Popen(
            tethered(server.command(), server.stop_signal),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C is for pytest
        )
    try:
        deadline = time.monotonic() + server.ready_within_s
        while not server.is_ready():
            assert process.poll() is None, tail(log)
            assert time.monotonic() < deadline, tail(log)
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(server.stop_signal)
        process.wait(30)
