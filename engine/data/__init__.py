"""Problems, SFT trajectories, tokenizer and rendering. Reaches no torch and no transformers."""
