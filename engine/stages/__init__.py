"""The stages of a recipe and the pipeline that runs them."""
