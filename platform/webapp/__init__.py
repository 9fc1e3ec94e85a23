"""The web platform: datasets, recipes, runs, trajectories, REST, live pages.

Started by `python manage.py up`. Sees of the engine only its contract and its torch-free rules; it never hosts a
training process.
"""
