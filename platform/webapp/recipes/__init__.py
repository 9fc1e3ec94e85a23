"""Versioned stage configurations, the built-in presets, and the form made from the recipe's JSON schema."""
