"""Commands of ``python -m engine`` that have a file of their own, and what all commands say and how they end."""
