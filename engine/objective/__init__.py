"""The GRPO objective (paper, 2.2) as pure functions on tensors.

Leaves out whatever holds state: the model, the optimizer, micro-batches and ranks are ``engine.learner``'s.

Shape suffixes, in every file here: ``N`` rollouts kept of a group, ``S`` sequences in a packed batch, ``T``
token places of a packed batch, ``V`` vocabulary. ``logp_T[t]`` is the log-probability of the token at place t
given all before it, at the rollout temperature. A mask is True where the policy sampled the token. A name
without suffix is a single number.
"""
