"""Advantages, losses and their metrics (paper, 2.2) as pure functions on tensors.

Leaves out whatever holds state: the model, the optimizer, micro-batches and ranks are ``engine.learner``'s.

Shape suffixes, in every file here: ``N`` rollouts kept of a group, ``T`` trained tokens of a pass, ``V`` vocabulary.
``logp_T[t]`` is the log-probability of trained token t given all before it, at the rollout temperature. A name
without suffix is a single number.
"""
