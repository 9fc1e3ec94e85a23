"""The web platform: datasets, recipes, runs, trajectories, REST and live pages, as one Django project.

Nothing of it exists yet: the folder holds its place, so that the import contracts already apply. It will
import the contracts and the pure rules of `engine` and `sandbox`, and never torch. `platform/` itself holds
no Python file, as that would shadow the standard library's `platform`.
"""
