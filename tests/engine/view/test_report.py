"""The report: whole, self-contained, honest about what is missing, deaf to what a model writes into it."""

import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from engine.contract.events import EngineLoad, RunFailed, RunStopped, SandboxLoad, StageStarted, StepFinished
from engine.contract.trajectory import Trajectory, Turn
from engine.sink.run_folder import RunFolderError
from engine.sink.trajectories import write_trajectories
from engine.view.report import write_report

HOSTILE = "</script></pre><img src=x onerror=alert(1)>\x00\x1b[31m<!--<script>alert(2)</script>"


class Page(HTMLParser):
    """The report's elements and its visible text, as a browser would find them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def figures(self) -> dict[str, Any]:
        scripts = [attributes for tag, attributes in self.tags if tag == "script"]
        data = zip(scripts, self.scripts, strict=True)
        return {str(a["id"]): json.loads(text) for a, text in data if a.get("type") == "application/json"}


@pytest.fixture(scope="module")
def whole_page(synthetic_run: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(write_report(synthetic_run(tmp_path_factory.mktemp("whole") / "run").whole().path))


def test_the_page_tells_the_run(whole_page: Page) -> None:
    for words in (
        "finished",
        "The SFT data of this recipe plants the tool errors",
        "Attempt 2 took rl-1 up at step 13. 3 later steps of an earlier attempt do not count.",
        "before training",
        "83.0% ± 3.3%",
        "inclusion probability",
        "rollout engine 0 died",
        'name = "laptop"',
    ):
        assert words in whole_page.text


def test_every_question_has_its_figure(whole_page: Page) -> None:
    names = {
        "evals",
        "reward",
        "tool-errors",
        "length",
        "endings",
        "roc",
        "entropy",
        "gap",
        "sft-loss",
        "speed",
        "phases",
    }
    assert whole_page.figures().keys() == {f"figure-{name}" for name in names}
    reward = whole_page.figures()["figure-reward"]
    assert reward["data"][0]["x"] == list(range(1, 41))  # one axis over both RL stages, resumption included
    assert [note["text"] for note in reward["layout"]["annotations"]] == ["rl-1", "rl-2", "attempt 2"]


def test_a_number_that_is_not_finite_is_a_gap_and_said(whole_page: Page) -> None:
    assert whole_page.figures()["figure-entropy"]["data"][0]["y"][8] is None
    assert "2 not finite, shown as gaps" in whole_page.text
    assert "NaN" in whole_page.text


def test_ten_telling_trajectories(whole_page: Page) -> None:
    cards = [a for tag, a in whole_page.tags if tag == "details" and a.get("class") == "card"]
    assert len(cards) == 10
    assert "open" in cards[0]
    for words in (
        "right after a repaired tool error",
        "cut before its answer",
        "wrong, kept",
        "right, dropped",
    ):
        assert words in whole_page.text


def test_nothing_is_loaded_from_anywhere(whole_page: Page) -> None:
    assert not [a for _, a in whole_page.tags if {"src", "srcset", "action", "href"} & a.keys()]
    policy = next(a["content"] for tag, a in whole_page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "url(" not in whole_page.source[: whole_page.source.index("</style>")]


def test_plotly_is_inlined_once(whole_page: Page) -> None:
    assert sum("plotly.js v" in script for script in whole_page.scripts) == 1


def test_only_our_two_scripts_may_run(whole_page: Page) -> None:
    policy = next(str(a["content"]) for tag, a in whole_page.tags if a.get("http-equiv"))
    (nonce,) = re.findall(r"'nonce-([^']+)'", policy)
    assert [a.get("nonce") for tag, a in whole_page.tags if tag == "script" and "type" not in a] == [
        nonce,
        nonce,
    ]


def test_everything_can_be_reached_by_keyboard(whole_page: Page) -> None:
    details = sum(tag == "details" for tag, _ in whole_page.tags)
    assert details == sum(tag == "summary" for tag, _ in whole_page.tags)


@pytest.fixture
def hostile_page(make_run: Callable[..., Any]) -> Page:
    run = make_run(problem=HOSTILE, spoken=HOSTILE)
    run.start()
    run.emit(StageStarted(stage="rl-1", kind="rl", steps=1, first_step=1))
    path = run.folder.trajectories(1, "rl-1", 1)
    changes = {
        "answer": HOSTILE,
        "gold": HOSTILE,
        "kept_reason": HOSTILE,
        "problem_id": HOSTILE,
        "verdict": HOSTILE,
    }
    write_trajectories(path, [hostile(t, changes) for t in run.trajectories("rl-1", 1, 0.0)])
    run.emit(
        StepFinished(
            stage="rl-1",
            step=1,
            metrics={"reward": 0.5},
            seconds={HOSTILE: 1.0},
            trajectories=run.folder.relative(path),
        ),
        RunFailed(error=HOSTILE, message=HOSTILE),
    )
    return Page(write_report(run.path))


def hostile(trajectory: Trajectory, changes: dict[str, str]) -> Trajectory:
    turns: list[Turn] = []
    for turn in trajectory.turns:
        calls = tuple(
            call.model_copy(
                update={
                    "name": HOSTILE,
                    "arguments": {HOSTILE: HOSTILE, "code": HOSTILE},
                    "response": HOSTILE,
                    "error_type": HOSTILE,
                    "status": HOSTILE,
                }
            )
            for call in turn.calls
        )
        turns.append(turn.model_copy(update={"text": HOSTILE + turn.text, "calls": calls, "role": HOSTILE}))
        turns.append(turn.model_copy(update={"text": HOSTILE + turn.text, "calls": calls}))
    return trajectory.model_copy(update={**changes, "turns": tuple(turns)})


def test_hostile_text_stays_text(hostile_page: Page) -> None:
    assert not [tag for tag, _ in hostile_page.tags if tag in {"img", "iframe", "object", "a", "svg", "link"}]
    assert not [a for _, a in hostile_page.tags if any(name.startswith("on") for name in a)]
    assert "<img src=x onerror=alert(1)>" in hostile_page.text
    plotly_ours_and_figures = len(hostile_page.figures()) + 2
    assert len(hostile_page.scripts) == plotly_ours_and_figures


def test_control_characters_are_shown_not_sent(hostile_page: Page) -> None:
    body = hostile_page.source[hostile_page.source.index("</style>") : hostile_page.source.index("<script")]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", body)
    assert "\\x00" in hostile_page.text
    assert "\\x1b[31m" in hostile_page.text


def test_hostile_text_in_a_figure_stays_data(hostile_page: Page) -> None:
    phases = hostile_page.figures()["figure-phases"]
    assert "alert" in phases["data"][0]["name"]
    assert "<img" not in "".join(script for script in hostile_page.scripts if '"data"' in script[:20])


def test_a_run_without_any_event_has_a_report(make_run: Callable[..., Any]) -> None:
    page = Page(write_report(make_run().path))
    assert "A run that never started" in page.text
    assert "No evaluation has finished yet." in page.text
    assert "No trajectories yet." in page.text
    assert page.figures() == {}


def test_a_run_stopped_in_sft_shows_what_there_is(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    run.sft(5)
    run.emit(RunStopped(reason="signal SIGINT"))
    page = Page(write_report(run.path))
    assert page.figures().keys() == {"figure-sft-loss"}
    assert "Nothing yet: no RL step has recorded this." in page.text
    assert "signal SIGINT" in page.text


def test_metrics_that_were_never_finite_do_not_break_it(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.emit(StepFinished(stage="rl-1", step=1, metrics={"reward": float("nan"), "entropy": float("inf")}))
    page = Page(write_report(run.path))
    assert "reward: no value (1 not finite, shown as gaps)" in page.text


def test_how_tool_calls_ended_is_told_of_each_stage(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    run.emit(StageStarted(stage="rl-1", kind="rl", steps=9, first_step=1))
    first, second = Counter(ok=900, error=90), Counter(ok=100, timeout=10)
    for number, (statuses, slowest) in enumerate([(first, 2.0), (second, 5.0)], start=1):
        figures = {"calls": statuses.total(), "statuses": statuses, "queued_s": 0.0, "wall_s": 0.1}
        told = {"wall_p99_s": slowest, "tools": {"python": statuses.total()}, "errors": {"<b>": 2, "ValueError": 1}}
        run.emit(SandboxLoad(stage="rl-1", step=number, **figures, **told))
    page = Page(write_report(run.folder.path))
    cells = ["rl-1", "1,100", "ok 1,000, error 90, timeout 10", "<b> 4, ValueError 2", "python 1,100", "5.0 s"]
    assert "".join(cells) in page.text


def test_what_engines_told_is_shown_over_time(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    metrics = {"in_flight": 9.0, "kv_usage": 0.5, "preemptions": 6.0}
    run.emit(EngineLoad(stage="rl-1", step=1, engine="vllm-0", metrics=metrics))
    page = Page(write_report(run.folder.path))
    assert "in flight: at most 9." in page.text
    assert "used, mean: at most 50.0%; used, fullest: at most 50.0%." in page.text
    assert "preemptions: at most 6." in page.text


def test_missing_trajectory_files_are_named(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.emit(StepFinished(stage="rl-1", step=1, trajectories="attempts/0001/trajectories/rl-1/step-00001.parquet"))
    page = Page(write_report(run.path))
    assert "1 trajectory files that the log names are gone" in page.text


def test_a_torn_line_is_said(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.start()
    with run.folder.events(1).open("ab") as file:
        file.write(b'{"att')
    assert "torn last line, events.jsonl: 5 bytes" in Page(write_report(run.path)).text


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        write_report(tmp_path)
