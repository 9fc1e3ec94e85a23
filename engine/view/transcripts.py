"""Ten telling trajectories: which ones, and how one is read.

Text that the policy sampled and text that was appended to its context look different, because only the former
is learned from. Leaves out down-sampling itself: the reason for keeping or dropping was stored when it was
decided.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.contract.trajectory import ToolCallRecord, Trajectory, Turn
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_summaries, read_trajectories
from engine.view.history import History
from engine.view.markup import Html, el, join
from engine.view.wording import NOTHING, duration, plain

_CALL_BLOCK = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)
_CUT = {"length", "max_turns"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a trajectory file, by its summary columns."""

    path: Path
    number: int
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kind of trajectory worth reading, looked for from the first steps on or from the last ones back."""

    why: str
    from_end: bool
    fits: Callable[[dict[str, Any]], bool]


def _right(row: dict[str, Any]) -> bool:
    return bool(row["reward"] == 1.0)


def _repaired(row: dict[str, Any]) -> bool:
    return _right(row) and 0 < row["tool_errors"] < row["tool_calls"]


def _wrong(row: dict[str, Any]) -> bool:
    return row["reward"] == 0.0 and row["stop_reason"] not in _CUT


def _cut(row: dict[str, Any]) -> bool:
    return row["stop_reason"] in _CUT


WANTED = (
    Wanted("right after a repaired tool error, kept", False, lambda row: _repaired(row) and row["kept"]),
    Wanted(
        "right with tool errors, dropped",
        False,
        lambda row: _right(row) and row["tool_errors"] > 0 and not row["kept"],
    ),
    Wanted("wrong, kept", False, lambda row: _wrong(row) and row["kept"]),
    Wanted("wrong, dropped", False, lambda row: _wrong(row) and not row["kept"]),
    Wanted("cut before its answer", False, _cut),
    Wanted(
        "right without tool errors, kept",
        True,
        lambda row: _right(row) and not row["tool_errors"] and row["kept"],
    ),
    Wanted("right after a repaired tool error", True, _repaired),
    Wanted("right, dropped", True, lambda row: _right(row) and not row["kept"]),
    Wanted("wrong, kept", True, lambda row: _wrong(row) and row["kept"]),
    Wanted("cut before its answer", True, _cut),
)


def pick(steps: Sequence[Sequence[Row]], count: int = len(WANTED)) -> list[tuple[str, Row]]:
    """At most ``count`` rows with the reason for showing each, in the order of training."""
    chosen: dict[tuple[Path, int], tuple[str, Row]] = {}
    for wanted in WANTED:
        rows = (row for step in (reversed(steps) if wanted.from_end else steps) for row in step)
        for row in rows:
            if (row.path, row.number) not in chosen and wanted.fits(row.summary):
                chosen[row.path, row.number] = (wanted.why, row)
                break
    for row in (row for step in reversed(steps) for row in step):
        if len(chosen) >= count:
            break
        chosen.setdefault((row.path, row.number), ("", row))
    order = {step[0].path: place for place, step in enumerate(steps) if step}
    return sorted(chosen.values(), key=lambda item: (order[item[1].path], item[1].number))[:count]


def trajectory_rows(folder: RunFolder, history: History) -> tuple[list[list[Row]], list[str]]:
    """Rows of every RL step (without one, of the evaluations), and the files that are missing."""
    steps = [step for _, step in history.points("rl")]
    files = [body.trajectories for body in steps if body.trajectories]
    if not files:
        files = [
            stage.evaluation.trajectories
            for stage in history.stages.values()
            if stage.evaluation is not None and stage.evaluation.trajectories
        ]
    rows, missing = [], []
    for name in files:
        path = folder.inside(name)
        if path.is_file():
            rows.append([Row(path, number, summary) for number, summary in enumerate(read_summaries(path))])
        else:
            missing.append(name)
    return rows, missing


def render_transcripts(folder: RunFolder, history: History) -> Html:
    """The report's section of trajectories."""
    steps, missing = trajectory_rows(folder, history)
    notes = []
    if missing:
        text = f"{len(missing)} trajectory files that the log names are gone, the first is {missing[0]}."
        notes.append(el("p", text, class_="note"))
    picked = pick(steps)
    if not picked:
        return join(notes, el("p", "No trajectories yet.", class_="empty"))
    shown = [
        _trajectory(why, read_trajectories(row.path, [row.number])[0], is_open=number == 0)
        for number, (why, row) in enumerate(picked)
    ]
    return join(notes, _legend(), shown)


def _legend() -> Html:
    return el(
        "p",
        el("span", "sampled by the policy", class_="key sampled"),
        " is learned from; ",
        el("span", "appended from a tool", class_="key appended"),
        " is not.",
        class_="legend",
    )


def _trajectory(why: str, trajectory: Trajectory, *, is_open: bool) -> Html:
    head = el(
        "summary",
        el("span", f"{trajectory.stage} · step {trajectory.step}", class_="where"),
        _result_badge(trajectory),
        _badge("kept", "good") if trajectory.kept else _badge("dropped", "off"),
        el("span", why, class_="why") if why else "",
    )
    body = [
        el(
            "div",
            el("h4", "Problem ", el("code", trajectory.problem_id)),
            el("pre", trajectory.problem),
            class_="turn prompt",
        ),
        [_turn(trajectory, number) for number in range(len(trajectory.turns))],
        _ending(trajectory),
    ]
    return el(
        "details",
        head,
        el("div", _facts(trajectory), _token_bar(trajectory), body, class_="body"),
        class_="card",
        open=is_open,
    )


def _result_badge(trajectory: Trajectory) -> Html:
    if trajectory.reward is None:
        return _badge(f"○ {trajectory.reward_status}", "off")
    if trajectory.stop_reason in _CUT:
        return _badge(f"✂ cut: {trajectory.stop_reason}", "warn")
    return _badge("✓ right", "good") if trajectory.reward > 0 else _badge("✗ wrong", "bad")


def _badge(text: str, kind: str) -> Html:
    return el("span", text, class_=f"badge {kind}")


def _facts(trajectory: Trajectory) -> Html:
    sampled = sum(trajectory.sampled)
    facts = {
        "reward": NOTHING if trajectory.reward is None else plain(trajectory.reward),
        "advantage": NOTHING if trajectory.advantage is None else f"{trajectory.advantage:+.3f}",
        "RoC penalty": NOTHING if trajectory.penalty is None else plain(trajectory.penalty),
        "prompt": f"{len(trajectory.prompt_ids)} tokens",
        "response": f"{sampled} sampled + {len(trajectory.ids) - sampled} appended tokens",
        "tool calls": f"{len(trajectory.calls)}, {trajectory.tool_errors} failed",
        "stopped": str(trajectory.stop_reason),
        "weights": _versions(trajectory),
        "took": duration(trajectory.seconds),
        "rollout": f"{trajectory.replica} of group {trajectory.group}",
    }
    return el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in facts.items()], class_="facts")


def _versions(trajectory: Trajectory) -> str:
    first, last = trajectory.first_version, trajectory.last_version
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _token_bar(trajectory: Trajectory) -> Html:
    """The response from left to right: who wrote which part."""
    runs = list(_runs(trajectory.sampled))
    return el(
        "div",
        [el("span", class_="sampled" if kind else "appended", style=f"flex-grow:{size}") for kind, size in runs],
        class_="bar",
        role="img",
        aria_label="; ".join(f"{size} tokens {'sampled' if kind else 'appended'}" for kind, size in runs),
    )


def _runs(mask: Iterable[bool]) -> Iterator[tuple[bool, int]]:
    current, size = None, 0
    for value in mask:
        if value is not current and current is not None:
            yield current, size
            size = 0
        current, size = value, size + 1
    if current is not None:
        yield current, size


def _turn(trajectory: Trajectory, number: int) -> Html:
    turn = trajectory.turns[number]
    sampled = sum(trajectory.sampled[turn.start : turn.end])
    appended = turn.end - turn.start - sampled
    tokens = " + ".join(
        part for part in (f"{sampled} sampled" * (sampled > 0), f"{appended} appended" * (appended > 0)) if part
    )
    head = el("h4", el("span", turn.role, class_="role"), el("span", f" {tokens or '0'} tokens", class_="tokens"))
    if turn.role == "assistant":
        return el("div", head, _assistant(turn), class_="turn sampled")
    return el("div", head, _tool(turn), class_="turn appended")


def _assistant(turn: Turn) -> Html:
    """The turn's text; each call block as its code, with the sampled JSON behind a click."""
    blocks = list(_CALL_BLOCK.finditer(turn.text))
    if len(blocks) != len(turn.calls):  # a malformed block: show exactly what was sampled
        return join(_text(turn.text), [_call(call) for call in turn.calls])
    parts, end = [], 0
    for block, call in zip(blocks, turn.calls, strict=True):
        raw = el("details", el("summary", "as sampled"), el("pre", block.group()), class_="raw")
        parts += [_text(turn.text[end : block.start()]), _call(call, raw)]
        end = block.end()
    return join(parts, _text(turn.text[end:]))


def _text(text: str) -> Html:
    return el("pre", text.strip("\n")) if text.strip() else Html("")


def _call(call: ToolCallRecord, raw: str = "") -> Html:
    head = el("div", el("code", call.name or "no readable call"), " ", _status(call), class_="call-head")
    arguments = [
        join(
            el("div", name, class_="argument") if name != "code" else "",
            el("pre", el("code", value), class_="code"),
        )
        for name, value in call.arguments.items()
        if value
    ]
    return el("div", head, arguments, raw, class_="call")


def _status(call: ToolCallRecord) -> Html:
    took = f" · {duration(call.wall_s)}" if call.wall_s else ""
    if not call.failed:
        return _badge(f"✓ ok{took}", "good")
    kind = f": {call.error_type}" if call.error_type else ""
    return _badge(f"✗ {call.status}{kind}{took}", "bad")


def _tool(turn: Turn) -> Html:
    """Tool responses; the calls carry them when the turn's own text does not."""
    answers = [join(_status(call), _text(call.response)) for call in turn.calls]
    return join(answers) if answers else _text(turn.text)


def _ending(trajectory: Trajectory) -> Html:
    verdict = f" (grader: {trajectory.verdict})" if trajectory.verdict else ""
    decision = "Kept" if trajectory.kept else "Dropped"
    return el(
        "div",
        el(
            "p",
            "Answer ",
            el("code", trajectory.answer or "none"),
            ", expected ",
            el("code", trajectory.gold),
            verdict,
            ".",
        ),
        el("p", el("strong", decision), f": {trajectory.kept_reason or 'no reason recorded'}."),
        class_="ending",
    )
