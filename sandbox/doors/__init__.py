"""How calls get in from other processes: a unix socket, or HTTP with tokens. Both give them to the same broker.

`serving` runs a node with its doors, `desk` counts what is under way so that all doors drain together. The socket:
`gateway` is the node's end, `remote` the client's, `frames` what they speak, `listening` who may reach it. HTTP:
`http_door`, `http_client`, `http_tokens`. Which URL means which door is said in `sandbox.places`.
"""
