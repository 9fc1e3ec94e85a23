"""One module a resource. Views take rows through ``accounts.policies``, ask services, and answer; rules live there."""
