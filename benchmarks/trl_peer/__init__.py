"""TRL (https://github.com/huggingface/trl) as a peer: its own code on our inputs, in an environment of its own.

Nothing of the project depends on TRL: what it computed is kept in ``tests/numerics/trl_frozen.json``.
"""
