"""The sandbox from a shell: `python -m sandbox COMMAND`. Collects the commands of `sandbox.commands`."""

import typer

from sandbox.commands.access_token import token
from sandbox.commands.batch import batch
from sandbox.commands.bench import bench
from sandbox.commands.exec_program import exec_program
from sandbox.commands.node import node
from sandbox.commands.selfcheck import selfcheck
from sandbox.commands.status import status

app = typer.Typer(
    help="Run untrusted Python programs in a jail, here or on many machines.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("exec")(exec_program)
for command in (batch, node, token, status, selfcheck, bench):
    app.command()(command)

if __name__ == "__main__":
    app()
