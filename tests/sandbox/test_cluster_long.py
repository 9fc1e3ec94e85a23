"""One step of a large training, 45,000 calls queued at once, and a node that is killed twice before they are done.

What it costs is printed, and judged by `python -m sandbox bench`: speed is no test's business.
"""

import json
import os

import pytest

from sandbox.bench import backlog
from tests.sandbox.support import PYTHON

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]
CALLS, MOST_GROWTH = 45_000, 0.05


async def test_45000_calls_survive_two_deaths_of_their_node() -> None:
    found = await backlog.measure(CALLS, max(2, os.cpu_count() or 1), PYTHON)
    print(json.dumps(found))
    assert (found["lost"], found["doubled"], found["wrong"], found["failures"]) == (0, 0, 0, {})
    assert found["node_resident_mb"]["growth"] <= MOST_GROWTH
