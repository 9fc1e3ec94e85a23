"""The jailed backend: warm zygotes that fork one locked-down child per call.

Outside of the jail, in the caller's event loop: `supervisor` (slots, deadlines), `link` (one zygote), `call`
(one program), `cgroups`. Inside, under the programs' interpreter, standard library only: `zygote` (jails
itself, imports, forks), `jail`, `lockdown`, `seccomp`, `syscalls`, `program` (runs the code). Both sides
speak `wire`. Nothing flows from a program to us but two pipes and a wait status, so there is nothing to
forge.
"""
