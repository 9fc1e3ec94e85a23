"""The commands of `python -m sandbox`, one file each. They hold no rules of their own."""
