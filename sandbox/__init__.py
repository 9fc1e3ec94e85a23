"""Starloom's code-execution sandbox: runs hostile, model-written Python and reports what it did.

Start at `sandbox.client.local_sandbox` (Python) or `python -m sandbox` (shell); `docs/sandbox.md` has the
threat model. This file imports nothing, because the jailed half of the package is loaded by the programs'
own interpreter, which has the standard library only.
"""
