"""`python -m sandbox token NAME`: a new token for the HTTP door."""

from pathlib import Path
from typing import Annotated

import typer

from sandbox.commands.running import BAD_INPUT, fail
from sandbox.doors.http_tokens import TokensUnusable, add_token


def token(
    name: Annotated[str, typer.Argument(help="Who it is for; its sessions are apart from those of others.")],
    tokens: Annotated[Path, typer.Option(help="File to add its hash to; made if there is none.")],
) -> None:
    """Print a new token for `node --http --tokens FILE`, once: only its hash is kept.

    A token's line in the file may be taken out at any time. Exit code: 0, or 2 if the file or name cannot be used.
    """
    try:
        print(add_token(tokens, name))
    except OSError as error:
        fail(BAD_INPUT, f"{tokens} cannot be used: {error.strerror}")
    except (ValueError, TokensUnusable) as error:
        fail(BAD_INPUT, str(error))
