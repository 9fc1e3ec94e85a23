"""Trajectories of a run by filter, and one of them as people read it."""

from typing import Any

import pytest
from django.test import Client

from tests.webapp.support import make_run
from tests.webapp.ui import rows
from tests.webapp.ui.markup import Page
from webapp.accounts.models import Project
from webapp.runs.models import Run
from webapp.ui.views import trajectories as views
from webapp.ui.wording import NOTHING

pytestmark = [pytest.mark.django_db]


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project, state="running")


def shown(response: Any) -> list[str]:
    """Problem ids of the table, top to bottom."""
    return [one.text for one in Page(response.text).all("a") if one.get("id").startswith("link-traj_")]


def test_without_trajectories_the_page_says_when_they_come(client: Client, run: Run) -> None:
    page = Page(client.get(f"/runs/{run.pk}/trajectories").text)

    assert "No trajectories yet" in page.words
    assert "This run is running" in page.words


def test_a_row_says_what_came_of_a_rollout(client: Client, run: Run) -> None:
    rows.make_trajectory(
        run, replica=3, problem_id="p", penalty=0.25, kept=False, kept_reason="not_drawn", advantage=None
    )

    cells = [" ".join(one.text.split()) for one in Page(client.get(f"/runs/{run.pk}/trajectories").text).all("td")]

    assert cells == [
        "rl", "1", "p", "3", "right", "2", "1", "0", "60", "answered", "not drawn", "0.25", NOTHING,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reward": 1.0}, "right"),
        ({"reward": 0.0, "verdict": "incorrect"}, "wrong"),
        ({"reward": 0.0, "verdict": "correct", "stop_reason": "length"}, "right when cut"),
        ({"reward": None, "reward_status": "ungradable"}, "ungradable"),
        ({"reward": 0.5}, "right 0.5"),
    ],
)
def test_results_are_words(fields: dict[str, Any], said: str, client: Client, run: Run) -> None:
    rows.make_trajectory(run, **fields)

    page = Page(client.get(f"/runs/{run.pk}/trajectories").text)

    assert " ".join(page.one("td", data_label="Result").text.split()) == said


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["e", "d", "c", "b", "a"]),
        ("stage=rl", ["d", "c", "b", "a"]),
        ("step=2", ["c"]),
        ("reward=1", ["e", "c", "a"]),
        ("reward=0", ["b"]),
        ("reward=none", ["d"]),
        ("reward_min=0.6", ["e", "a"]),
        ("reward_min=0.1&reward_max=0.9", ["c"]),
        ("errors=any", ["b"]),
        ("errors=none", ["e", "d", "c", "a"]),
        ("errors=no-calls", ["d"]),
        ("error_type=NameError", ["b"]),
        ("error_type=timeout", ["b"]),
        ("kept=yes", ["e", "c", "a"]),
        ("kept=no", ["d", "b"]),
        ("stop=length", ["b"]),
        ("group=rl/2/0", ["c"]),
        ("superseded=1", ["old", "e", "d", "c", "b", "a"]),
        ("superseded=1&stage=rl&step=9", ["old"]),
        ("stage=rl&reward=1&kept=yes&step=1", ["a"]),
        ("stage=nowhere", []),
    ],
)
def test_filters(query: str, expected: list[str], client: Client, run: Run) -> None:
    rows.make_trajectory(run, problem_id="a")
    wrong = rows.make_trajectory(
        run, problem_id="b", reward=0.0, tool_errors=2, kept=False, stop_reason="length", texts=False
    )
    rows.add_call(wrong, status="error", error_type="NameError")
    rows.add_call(wrong, status="timeout", position=1)
    rows.make_trajectory(run, problem_id="c", step=2, group_name="rl/2/0", reward=0.5)
    rows.make_trajectory(run, problem_id="d", reward=None, kept=False, tool_calls=0)
    rows.make_trajectory(run, problem_id="e", stage="eval")
    rows.make_trajectory(run, problem_id="old", step=9, superseded=True)

    response = client.get(f"/runs/{run.pk}/trajectories?{query}")

    assert shown(response) == expected
    form = Page(response.text)
    for wish in filter(None, query.split("&")):
        name, _, value = wish.partition("=")
        assert kept_in_form(form, name, value), f"the form forgot {wish}"


def kept_in_form(page: Page, name: str, value: str) -> bool:
    """Whether the form shows the wish: typed, ticked, or chosen."""
    typed = page.all("input", name=name, value=value)
    chosen = [one for one in page.all("option") if "selected" in one.attributes]
    unknown_stage = value == "nowhere"
    return bool(typed) or value in [one.attributes.get("value", one.text) for one in chosen] or unknown_stage


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("step=two", "step: expected a whole number"),
        ("step=-1", "step: expected a whole number"),
        ("step=99999999999999999999", "step: expected a whole number"),
        ("reward=maybe", "reward: expected 1, 0, none"),
        ("reward_min=nan", "reward_min: expected a number"),
        ("errors=lots", "errors: expected any, none, no-calls"),
        ("kept=1", "kept: expected yes, no"),
    ],
)
def test_a_filter_that_cannot_be_read_is_named_not_ignored(query: str, said: str, client: Client, run: Run) -> None:
    rows.make_trajectory(run)

    response = client.get(f"/runs/{run.pk}/trajectories?{query}")

    assert said in Page(response.text).by_id("wrong-filter").text
    assert shown(response) == []


def test_paging_keeps_the_filter(client: Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 2)
    for number in range(5):
        rows.make_trajectory(run, problem_id=f"p{number}", texts=False)
        rows.make_trajectory(run, problem_id="other", step=2, texts=False)
    seen, query = [], "?step=1"
    while query:
        response = client.get(f"/runs/{run.pk}/trajectories{query}")
        seen += shown(response)
        older = Page(response.text).all("a", rel="next")
        query = older[0]["href"] if older else ""

    assert seen == ["p4", "p3", "p2", "p1", "p0"]


def test_next_and_newer_stay_within_the_filter(client: Client, run: Run) -> None:
    first = rows.make_trajectory(run, kept=True)
    rows.make_trajectory(run, kept=False)
    middle = rows.make_trajectory(run, kept=True)
    rows.make_trajectory(run, kept=False)
    last = rows.make_trajectory(run, kept=True)
    row = Page(client.get(f"/runs/{run.pk}/trajectories?kept=yes&stage=rl").text).by_id(f"link-{middle.pk}")
    assert row["href"] == f"/trajectories/{middle.pk}?stage=rl&kept=yes"

    page = Page(client.get(row["href"]).text)

    onward, back = page.one("a", rel="next"), page.one("a", rel="prev")
    assert (onward["href"], onward["data-hotkey"]) == (f"/trajectories/{first.pk}?stage=rl&kept=yes", "n")
    assert (back["href"], back["data-hotkey"]) == (f"/trajectories/{last.pk}?stage=rl&kept=yes", "p")
    assert page.all("a", href=f"/runs/{run.pk}/trajectories?stage=rl&kept=yes")
    assert Page(client.get(onward["href"]).text).all("a", rel="next") == []


def test_a_trajectory_reads_from_problem_to_verdict(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run)

    page = Page(client.get(f"/trajectories/{row.pk}").text)

    assert "What is 6 times 7?" in page.by_id("problem").text
    first, call, second = page.by_id("t1"), page.by_id("t1-tool1"), page.by_id("t2")
    assert "I compute it." in first.text
    assert "ran 50 ms, waited 10 ms" in call.text
    assert page.one("div", class_="code-block").text == "print(6*7)"
    assert "42" in call.text
    assert "\\boxed{42}" in second.text
    assert "correct" in page.by_id("verdict").text
    assert [one["href"] for one in page.all("a", data_hotkey="j")] == ["#t1", "#t2", "#verdict"]
    assert "Kept: drawn among the right rollouts" in page.words


def test_a_failed_call_says_how(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run, texts=False, tool_errors=1)
    rows.add_turns(row, [("assistant", rows.CALL), ("tool", "Traceback")])
    rows.add_call(row, status="error", error_type="NameError", response="Traceback: NameError")

    call = Page(client.get(f"/trajectories/{row.pk}").text).by_id("t1-tool1")

    assert "error the program failed: NameError" in " ".join(call.text.split())
    assert "what the model got back" in call.text


def test_responses_that_did_not_reach_the_model_are_told(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run, texts=False, stop_reason="max_turns")
    rows.add_turns(row, [("assistant", rows.CALL)])
    rows.add_call(row)

    page = Page(client.get(f"/trajectories/{row.pk}").text)

    assert "did not go back to the model: cut: it used up its turns" in page.words


def test_right_when_cut_is_explained(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run, reward=0.0, verdict="correct", stop_reason="length")

    page = Page(client.get(f"/trajectories/{row.pk}").text)

    assert "correct: right when cut" in page.words
    assert "it counts as wrong and stays in the loss" in page.words


def test_the_group_is_a_strip_of_its_rollouts(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run, replica=0, reward=1.0, kept=True)
    other = rows.make_trajectory(run, replica=1, reward=0.0, kept=False)
    rows.make_trajectory(run, replica=2, group_name="another")
    rows.make_group(row, right=1, rollouts=2, kept=1, left_out=3)

    page = Page(client.get(f"/trajectories/{row.pk}?kept=yes").text)

    strip = [one for one in page.all("a") if one.get("class") == "sibling"]
    assert [one["href"].partition("?")[0].rpartition("/")[2] for one in strip] == [row.pk, other.pk]
    assert [one.get("aria-current") for one in strip] == ["true", ""]
    assert [one["title"] for one in strip] == ["rollout 0: right, kept", "rollout 1: wrong, not kept"]
    assert "1 right of 2, 1 kept, 3 left out by our failures" in page.words


def test_a_superseded_trajectory_says_so(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run, superseded=True, step=4)

    assert "a later attempt of this run did step 4 again" in Page(client.get(f"/trajectories/{row.pk}").text).words


def test_the_raw_text_is_there_to_see_and_to_download(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run)

    raw = Page(client.get(f"/trajectories/{row.pk}?raw=1&kept=yes").text)
    file = client.get(f"/trajectories/{row.pk}/text")

    text = raw.one("pre", class_="text raw").text
    assert text == file.content.decode()
    assert rows.CALL in text
    assert "--- response to call 1: ok\n42\n" in text
    assert raw.all("a", href=f"/trajectories/{row.pk}?kept=yes")
    assert file["Content-Type"] == "text/plain; charset=utf-8"
    assert file["Content-Disposition"] == f'attachment; filename="{row.pk}.txt"'
    assert file["X-Content-Type-Options"] == "nosniff"


def test_whose_weights_sampled_which_part_is_told_where_there_were_several(client: Client, run: Run) -> None:
    """A rollout that was carried over goes on by the next step's weights."""
    plain = rows.make_trajectory(run)
    carried = rows.make_trajectory(run, first_version=3, last_version=4, policy_steps=[[0, 3], [32, 4]])
    assert "Weights version 3 Took" in Page(client.get(f"/trajectories/{plain.pk}").text).words
    said = Page(client.get(f"/trajectories/{carried.pk}").text).words
    assert "version 3: tokens 0 to 31 version 4: tokens 32 to 59" in said
