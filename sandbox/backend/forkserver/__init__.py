"""The jailed backend: warm zygotes that fork locked-down children ahead of need, one for each call or session.

Outside of the jail, in the caller's event loop: `supervisor` (slots, sessions), `spares` (children that wait),
`zygotes` (start, replace), `link` (one zygote), `child` (one child), `call` (one program in it), `berths` and `cgroups`
(its place). Inside, under the programs' interpreter, standard library only: `zygote` (jails itself, imports, forks),
`spare` (a child's life), `program` (runs the code), and for the full tier `full`, `jail`, `lockdown`, `seccomp`, for
the container tier `container`. Both sides speak `wire`. Nothing flows from a program to us but two pipes and a wait
status, so there is nothing to forge.
"""
