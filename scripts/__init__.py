"""What `make setup` and `make lock` run: standard library only, started by the system's Python."""
