"""One machine's processes: embedded Postgres and Valkey, the supervisor behind ``manage.py up``, the agent."""
