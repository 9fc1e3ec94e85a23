"""What the sandbox costs and how long its callers wait, measured beside the plain way on the same cores.

`closed_loop` compares calls back to back, `sessions` looks at cells and idle memory, `open_loop` at calls that come
when they like, `backlog` at a long queue whose node dies. `musts` judges, `report` prints, `whole` runs all in order.
"""
