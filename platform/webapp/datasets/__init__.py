"""Problem sets that users upload, as versions that never change. Leaves out generated problems: ``engine.data``."""
