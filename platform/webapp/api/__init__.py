"""REST under ``/api/v1/``: routers, pagination, problem+json, schema. Has no rules of its own."""
