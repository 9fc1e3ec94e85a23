"""Options that several commands have."""

from typing import Annotated

import typer

from sandbox.places import FORMS, TOKEN_VARIABLE, check_url


def a_sandbox(url: str | None) -> str | None:
    """Refuse at once what is no sandbox's URL."""
    try:
        if url is not None:
            check_url(url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return url


SandboxOption = Annotated[
    str | None,
    typer.Option(
        "--sandbox",
        envvar="STARLOOM_SANDBOX",
        metavar="URL",
        callback=a_sandbox,
        help=f"Sandbox to use: {FORMS}, its token in ${TOKEN_VARIABLE}; a private node otherwise.",
        show_default=False,
    ),
]
