"""What the learner needs and does: memory planned from a recipe, speed and memory measured on a device."""
