"""Pictures for the documentation: small enough, and still the same picture. Taking them needs a whole platform."""

import io
import os

import pytest
from PIL import Image

from scripts import screenshots
from scripts.screenshots import smaller


def png(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def test_a_page_of_few_colours_keeps_every_one() -> None:
    page = Image.new("RGB", (200, 100), "#f6f7fb")
    page.paste("#0b5cad", (20, 20, 120, 40))
    assert opened(smaller(png(page))).tobytes() == page.tobytes()


def test_a_rich_one_gets_as_few_colours_as_its_size_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    rich = Image.frombytes("RGB", (120, 90), os.urandom(120 * 90 * 3))
    sizes = [len(smaller(png(rich)))]
    monkeypatch.setattr(screenshots, "MOST_BYTES", 8_000)
    sizes.append(len(smaller(png(rich))))
    assert len(png(rich)) > sizes[0] > 8_000 > sizes[1]
    assert opened(smaller(png(rich))).size == rich.size


def test_without_a_password_it_says_where_one_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["screenshots"])
    monkeypatch.delenv("STARLOOM_PASSWORD", raising=False)
    with pytest.raises(SystemExit):
        screenshots.read_arguments()
    assert "STARLOOM_PASSWORD" in capsys.readouterr().err
