"""The file of tokens: what is stored, what is refused."""

import hashlib
import stat
from pathlib import Path

import pytest

from sandbox.doors.http_tokens import Tokens, TokensUnusable, add_token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def test_only_hashes_are_stored_for_the_owner_alone(file: Path) -> None:
    ada, bob = add_token(file, "ada"), add_token(file, "bob")
    digests = [hashlib.sha256(token.encode()).hexdigest() for token in (ada, bob)]
    assert file.read_text() == f"ada {digests[0]}\nbob {digests[1]}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["tokens"]


def test_tokens_know_their_owner_and_new_ones_count_at_once(file: Path) -> None:
    ada = add_token(file, "ada")
    tokens = Tokens(file)
    bob = add_token(file, "bob")
    assert [tokens.owner(token) for token in (ada, bob, "", ada + "x", "\udcff")] == ["ada", "bob", None, None, None]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "é", "a\n", "a" * 33])
def test_names_are_plain(file: Path, name: str) -> None:
    with pytest.raises(ValueError, match="token's name"):
        add_token(file, name)
    assert not file.exists()


def test_a_name_is_given_once(file: Path) -> None:
    add_token(file, "ada")
    before = file.read_text()
    with pytest.raises(ValueError, match="has a token ada already"):
        add_token(file, "ada")
    assert file.read_text() == before


def test_what_others_can_read_is_refused(file: Path) -> None:
    add_token(file, "ada")
    file.chmod(0o640)
    with pytest.raises(TokensUnusable, match="chmod 600"):
        Tokens(file)


def test_a_file_that_is_none_is_named_with_its_line(file: Path) -> None:
    add_token(file, "ada")
    with file.open("a") as more:
        more.write("bob secret\n")
    with pytest.raises(TokensUnusable, match="line 2"):
        Tokens(file)


def test_a_file_that_is_not_there_says_how_to_make_it(file: Path) -> None:
    with pytest.raises(TokensUnusable, match=f"token NAME --tokens {file}"):
        Tokens(file)
