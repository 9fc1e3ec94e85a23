"""Which rollout goes to which engine, and when: pure bookkeeping that simulations and live engines drive alike."""
