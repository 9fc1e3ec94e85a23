"""Rollouts measured: against TRL, with their tools hidden, on live engines, under death and in crowds."""
