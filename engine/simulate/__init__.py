"""Rollouts at cluster scale, simulated: the scheduler that runs use, driven in virtual time over modelled engines."""
