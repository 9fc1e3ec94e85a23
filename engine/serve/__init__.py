"""An OpenAI-compatible endpoint in front of a checkpoint, with the tool loop inside."""
