"""What the rollout benchmarks conclude from what they measured, and that their arms are asked the same."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from benchmarks.rollouts import engine_death, hidden_tools, live_engines, loop_lag, trl_rollouts
from benchmarks.rollouts.musts import Must, ratio, turned
from benchmarks.rollouts.sure_policy import Talk, problem, renderer, said, save_policy_tokenizer, system
from engine.contract.events import StepFinished
from engine.rollout.toolcalls import ToolCall, parse_tool_calls


@pytest.mark.parametrize(
    ("sense", "value", "reached"),
    [("at least", 6.0, True), ("at least", 5.9, False), ("at most", 6.0, True), ("at most", 6.1, False)],
)
def test_a_must_is_reached_on_its_side_of_the_bound(sense, value, reached) -> None:
    row = Must("speed", 6, sense).judge(value)
    assert row == {"name": "speed", "must": f"{sense} 6 x", "value": value, "reached": reached}


def test_what_was_not_measured_reaches_nothing_and_says_why() -> None:
    row = Must("speed", 6).judge(None, "no TRL")
    assert (row["reached"], row["reason"]) == (False, "no TRL")


def test_ratios_are_taken_within_rounds() -> None:
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == {"ratio": 3.0, "spread": [2.0, 4.0], "rounds": 3}


def test_each_arm_is_first_in_turn() -> None:
    assert [turned("abc", number) for number in range(4)] == [list(order) for order in ("abc", "bca", "cab", "abc")]


TALK = Talk(calls=2, thought_tokens=5)


@pytest.fixture(scope="module")
def render(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    save_policy_tokenizer(folder, TALK)
    return renderer(folder)


def test_both_peers_see_the_same_conversation(render) -> None:
    """TRL's chat template and our renderer: the same text, so the same ids of a tokenizer that cuts at lines."""
    messages = [{"role": "system", "content": system()}, {"role": "user", "content": problem(3)}]
    for message in TALK.messages("1"):
        role, text = message.role, message.texts[0]
        ours = parse_tool_calls(text, (hidden_tools.PAUSE.spec,)) if role == "assistant" else []
        calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in ours if isinstance(c, ToolCall)]
        messages.append({"role": role, "content": text.split("<tool_call>")[0], "tool_calls": calls})
    ids, _ = render.conversation(problem(3), TALK.messages("1"))
    assert as_trl_renders(messages) == render.decode(ids) + "\n"
    assert as_trl_renders(messages[:2], add_generation_prompt=True) == render.decode(render.prompt(problem(3)))
    assert render.policy_text(render.decode(ids)) == ids


def as_trl_renders(messages: list[dict[str, object]], **options: bool) -> str:
    rendered, _ = render_jinja_template([messages], chat_template=trl_rollouts.TEMPLATE, **options)
    return rendered[0]


def test_a_thought_has_a_token_for_each_character(render) -> None:
    assert len(render.policy_text(TALK.thought)) == TALK.thought_tokens


def test_equally_likely_answers_share_what_is_due(render) -> None:
    made = said(render, problem(3), Talk(calls=1, thought_tokens=2, answers=("1", "2")))
    assert sorted(made.due_VT[0].unique().tolist()) == [0.5, 1.0]
    assert (made.due_VT[0] == 0.5).sum() == 1


def test_a_batch_has_its_share_of_long_problems_and_its_own_luck() -> None:
    settings = live_engines.Settings(problems=20, group=4, spread=0.0)
    rollouts = live_engines.batch(settings, seed=1)
    lengths = [rollout.tokens for rollout in rollouts]
    assert lengths.count(settings.long_tokens) == 2 * 4
    assert lengths.count(settings.short_tokens) == 18 * 4
    assert rollouts == live_engines.batch(settings, seed=1) != live_engines.batch(settings, seed=2)


def test_every_pair_of_steps_has_a_pause_and_none_and_the_first_turns() -> None:
    pauses = [hidden_tools.pause_s(step) for step in range(1, 9)]
    assert pauses == [0.0, 0.3, 0.3, 0.0, 0.0, 0.3, 0.3, 0.0]


def test_a_step_counts_to_its_push_and_the_first_pair_not_at_all() -> None:
    def step(number: int, sampling: float) -> StepFinished:
        seconds = dict.fromkeys(hidden_tools.COUNTED, 0.0) | {"sampling": sampling, "checkpoint": 99.0}
        return StepFinished(stage="rl", step=number, metrics={}, seconds=seconds)

    found = hidden_tools.described(hidden_tools.Settings(), [step(1, 50), step(2, 1), step(3, 21), step(4, 20)])
    assert found["ratio"] == pytest.approx(1.05)
    assert found["musts"][0]["reached"]


def test_the_ideal_stretches_what_was_left_when_the_engine_died() -> None:
    found = engine_death.against_ideal({"wall_s": 10.0}, {"wall_s": 17.6, "died_s": 4.0})
    assert found["ideal_s"] == pytest.approx(4 + 2 * 6)
    assert found["over_ideal"] == pytest.approx(1.1)


def test_lag_is_told_in_milliseconds_with_what_is_over_the_bound() -> None:
    told = loop_lag.described([0.001] * 99 + [0.101])
    assert (told["p50"], told["p99"], told["max"]) == pytest.approx((1.0, 1.0, 101.0))
    assert told["late_share"] == pytest.approx(101 / 200)
