"""Which servers and which sandbox the settings name: the embedded ones, or those of the environment."""

from pathlib import Path

import pytest

from webapp.config.paths import Var
from webapp.config.servers import Sandbox, Valkey, WrongUrl, database, sandbox, valkey


@pytest.fixture
def var(tmp_path: Path) -> Var:
    return Var(tmp_path / "var")


def test_without_variables_the_embedded_servers(var: Var) -> None:
    made = database(var)
    assert (made["HOST"], made["PASSWORD"]) == (str(var.sockets), var.secret("postgres_password"))
    assert valkey(var).celery.startswith("redis+socket://:")
    assert valkey(var).url.endswith(f"@{var.sockets}/valkey.sock")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgres://us%40er:p%2Fw@db.example:5433/star?sslmode=require",
            {"USER": "us@er", "PASSWORD": "p/w", "HOST": "db.example", "PORT": "5433", "NAME": "star"},
        ),
        ("postgresql://u:p@/star?host=/run/pg", {"USER": "u", "HOST": "/run/pg", "PORT": "", "NAME": "star"}),
    ],
)
def test_a_database_url(url: str, expected: dict[str, str], var: Var, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    made = database(var)
    assert {name: made[name] for name in expected} == expected
    assert made["OPTIONS"].get("sslmode") == ("require" if "sslmode" in url else None)
    assert "host" not in made["OPTIONS"]


@pytest.mark.parametrize("url", ["mysql://u@h/d", "postgres://u@h", "nonsense"])
def test_a_wrong_database_url_names_the_variable(url: str, var: Var, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(WrongUrl, match="DATABASE_URL: expected"):
        database(var)


@pytest.mark.parametrize(
    ("url", "channels", "celery"),
    [
        ("redis://h:6379/0", "redis://h:6379/0", "redis://h:6379/0"),
        ("valkey://h:6379/0", "redis://h:6379/0", "redis://h:6379/0"),
        ("rediss://:pw@h:6380/1", "rediss://:pw@h:6380/1", "rediss://:pw@h:6380/1"),
        ("unix://:pw@/run/v.sock", "unix://:pw@/run/v.sock", "redis+socket://:pw@/run/v.sock"),
    ],
)
def test_a_valkey_url(url: str, channels: str, celery: str, var: Var, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKEY_URL", url)
    made = valkey(var)
    assert made == Valkey(channels)
    assert made.celery == celery


def test_a_wrong_valkey_url_names_the_variable(var: Var, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKEY_URL", "http://h")
    with pytest.raises(WrongUrl, match="VALKEY_URL: expected"):
        valkey(var)


def test_without_a_variable_the_sandbox_is_the_node_of_up(var: Var) -> None:
    assert sandbox(var) == Sandbox(f"unix:{var.sockets}/sandbox.sock", ours=True)


def test_a_sandbox_elsewhere_is_shown_without_its_password(var: Var, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARLOOM_SANDBOX", "valkey://:hidden@queue.example:6379/0")
    monkeypatch.setenv("STARLOOM_SANDBOX_TOKEN", "a-token")
    made = sandbox(var)
    assert made == Sandbox("valkey://:hidden@queue.example:6379/0", "a-token", ours=False)
    assert "queue.example" in made.shown
    assert "hidden" not in made.shown


@pytest.mark.parametrize("url", ["/run/node.sock", "ftp://h", "http://"])
def test_a_wrong_sandbox_url_names_the_variable(url: str, var: Var, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARLOOM_SANDBOX", url)
    with pytest.raises(WrongUrl, match="STARLOOM_SANDBOX: "):
        sandbox(var)
