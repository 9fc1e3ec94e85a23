"""``python -m engine serve`` as a person starts and ends it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

from engine.cli import app

COMMAND = [sys.executable, "-m", "engine", "serve"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def model(tmp_path: Path, tokenizer: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tokenizer, folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 512}')
    return folder


@pytest.mark.e2e
def test_it_serves_with_a_real_sandbox_until_it_is_told_to_stop(model: Path, tmp_path: Path) -> None:
    serving = subprocess.Popen(
        [*COMMAND, str(model), "--kind", "scripted", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert serving.stdout is not None
    with serving:
        try:
            said = [serving.stdout.readline()]
            while not (found := re.match(r"ready: (\S+)", said[-1])):
                assert said[-1], said
                said.append(serving.stdout.readline())
            assert said[0] == f"serving {model}\n"
            body = json.dumps({"messages": [{"role": "user", "content": "Compute 17*23."}], "temperature": 0})
            request = urllib.request.Request(
                f"{found[1]}v1/chat/completions", body.encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                choice = json.load(response)["choices"][0]
        finally:
            serving.send_signal(signal.SIGINT)
            rest = serving.stdout.read()
    assert choice["starloom"]["turns"][-2]["calls"][0]["status"] == "ok"
    assert choice["message"]["content"] in (r"<answer>\boxed{391}</answer>", r"<answer>\boxed{392}</answer>")
    assert (serving.returncode, rest) == (0, "ending\nended\n")
    assert not list(tmp_path.glob("starloom-serve-*"))


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 2, done
    return done.output


def test_what_cannot_be_served_is_refused_at_once(model: Path, tmp_path: Path) -> None:
    assert "no model folder" in refusal(str(tmp_path / "nothing"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"max_position_embeddings": 512}')
    Tokenizer(models.BPE()).save(str(tmp_path / "other" / "tokenizer.json"))
    assert "the protocol's tags must be single tokens" in refusal(str(tmp_path / "other"), "--port", "0")
    assert "cannot be imported" in refusal(str(model), "--port", "0", "--tools", "python,nothing:tool")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refusal(str(model), "--port", port)


def test_other_machines_come_in_with_tokens_only(model: Path, tmp_path: Path) -> None:
    assert "start with --token-file FILE" in refusal(str(model), "--host", "0.0.0.0")
    assert "python -m sandbox token NAME" in refusal(str(model), "--token-file", str(tmp_path / "none"))
