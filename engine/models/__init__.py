"""Models made or opened: everything that knows architectures."""
