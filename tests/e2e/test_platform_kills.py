"""Web, worker, Postgres, Valkey, sandbox, agent and engine killed (-9) in mid-run: nothing lost, nothing doubled.

The scripted engine here, so that a run is long in steps and short in seconds. REST, Postgres and the run folder have
to agree on every step.
"""

import json
from typing import Any

import httpx
import pytest

from tests.stack import Stack, assert_agreement

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

STEPS, FEW = 300, 30


def until_step(stack: Stack, run_id: str, step: int) -> None:
    def reached() -> bool:
        try:
            run = stack.run(run_id)
        except (httpx.HTTPError, ValueError):  # the server may be the one that was just killed
            return False
        assert run["state"] not in ("failed", "stopped"), run["state_reason"]
        assert run["stage"] != "eval", "the run was nearly over: this kill would show nothing"
        return run["stage"] == "rl" and run["step"] >= step

    stack.until(reached, 120, f"step {step} never came")


@pytest.mark.long
def test_parts_of_the_platform_killed_one_after_the_other(platform_stack: Stack) -> None:
    run_id = platform_stack.start_scripted(name="kills", steps=STEPS)
    for step, part in enumerate(("web", "postgres", "valkey", "worker", "sandbox", "agent"), start=1):
        until_step(platform_stack, run_id, 8 * step)
        platform_stack.kill(part)
    run = platform_stack.until_state(run_id, "finished", "failed", "stopped")
    assert run["state"] == "finished", run["state_reason"]
    assert run["attempt"] == 1
    assert_agreement(platform_stack, run_id, {"rl": STEPS})


@pytest.mark.long
def test_the_engine_killed_is_told_and_resumed_as_attempt_two(platform_stack: Stack) -> None:
    run_id = platform_stack.start_scripted(name="kills", steps=FEW)
    until_step(platform_stack, run_id, 5)
    engines = [p for p in platform_stack.engines() if run_id in " ".join(p.cmdline())]
    assert len(engines) == 1, "one engine for one run"
    engines[0].kill()
    run = platform_stack.until_state(run_id, "failed", seconds=60)
    assert "signal 9" in run["state_reason"]
    resumed = platform_stack.api.post(f"/runs/{run_id}/commands/resume", json={})
    assert resumed.status_code == 202, resumed.text
    run = platform_stack.until_state(run_id, "finished", "failed")
    assert (run["state"], run["attempt"]) == ("finished", 2), run["state_reason"]
    assert_agreement(platform_stack, run_id, {"rl": FEW})


def test_the_database_is_rebuilt_from_the_run_folder(platform_stack: Stack) -> None:
    """A second platform that has never heard of the run ingests its folder; every row is the same."""
    run_id = platform_stack.start_scripted(name="rebuilt", steps=8)
    platform_stack.until_state(run_id, "finished")
    with platform_stack.database() as database:
        before = rows_of(database, run_id)
        folder = database.execute("SELECT folder FROM runs_run WHERE id = %s", [run_id]).fetchone()[0]
        database.execute("BEGIN")
        for table in TABLES:
            database.execute(f"DELETE FROM {table} WHERE {OWNED[table]}", [run_id])
        database.execute("COMMIT")
    said = platform_stack.manage("ingest", folder, "--owner", "admin")
    assert run_id in said
    with platform_stack.database() as database:
        assert rows_of(database, run_id) == before
    assert_agreement(platform_stack, run_id, {"rl": 8})


# Rows that a run folder holds, children first. Who asked for what (commands, transitions) is the platform's alone.
OWNED = {
    "trajectories_toolcall": "run_id = %s",
    "trajectories_turn": "trajectory_id IN (SELECT id FROM trajectories_trajectory WHERE run_id = %s)",
    "trajectories_trajectory": "run_id = %s",
    "trajectories_group": "run_id = %s",
    "telemetry_enginemoment": "run_id = %s",
    "telemetry_metricpoint": "run_id = %s",
    "telemetry_logline": "run_id = %s",
    "runs_checkpoint": "run_id = %s",
    "runs_attempt": "run_id = %s",
    "runs_stagerun": "run_id = %s",
    "runs_command": "run_id = %s",
    "runs_transition": "run_id = %s",
    "runs_run": "id = %s",
}
TABLES = tuple(OWNED)
# Numbers that say in which order rows came into this database, and when: no part of the run.
UNSTABLE = {"id", "revision", "reset_revision", "launches", "heartbeat_at", "state_at", "created_at", "started_at"}
UNSTABLE |= {"ended_at", "finished_at", "project_id", "created_by_id", "recipe_version_id", "datasets", "name", "toml"}
UNSTABLE |= {"spec", "digest", "state_reason"}
NUMBERED = {"trajectories_turn", "telemetry_enginemoment", "telemetry_metricpoint", "telemetry_logline"}
NUMBERED |= {"runs_attempt", "runs_stagerun"}


def rows_of(database: Any, run_id: str) -> dict[str, list[str]]:
    """Every row of the run as sorted JSON, without what is no part of it."""
    found = {}
    for table in TABLES:
        if table in ("runs_command", "runs_transition"):
            continue
        rows = database.execute(f"SELECT to_jsonb(t) FROM {table} t WHERE {OWNED[table]}", [run_id]).fetchall()
        drop = UNSTABLE if table in NUMBERED or table == "runs_run" else UNSTABLE - {"id"}
        found[table] = sorted(json.dumps({k: v for k, v in row.items() if k not in drop}) for (row,) in rows)
    return found
