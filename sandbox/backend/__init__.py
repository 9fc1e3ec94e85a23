"""Ways to run one program: `forkserver` (jailed, the default) and `subprocess_backend` (plain reference).

Imports nothing: the programs' interpreter loads this file too.
"""
