"""How commands talk and end: a line for a person, an exit code for a script.

Exit codes: 0 done, 1 failed, 2 wrong input. Leaves out what each command does.
"""

import contextlib

import typer

FAILED, WRONG = 1, 2


def say(message: str, *, error: bool = False) -> None:
    """A line for whoever reads; that nobody does any more (a launcher that died) changes nothing for the command."""
    with contextlib.suppress(OSError):
        typer.secho(message, err=error, fg="red" if error else None)


def refuse(error: Exception) -> typer.Exit:
    """Wrong input, said: to be raised."""
    typer.secho(str(error), err=True, fg="red")
    return typer.Exit(WRONG)
