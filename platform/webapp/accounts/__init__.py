"""Who: users, projects with an owner, API tokens. Leaves out what they may see: ``policies.py`` says that once."""
