"""Becomes another program that is told to end when the process that started it dies, however it dies.

Started as ``python -I -S tether.py SIGNAL PARENT COMMAND...``: asks the kernel for SIGNAL at the parent's death
(PR_SET_PDEATHSIG) and executes COMMAND in its own place, so that the process id is the command's. A program of its own
rather than a function run between fork and exec, which is not safe in a parent with threads. Standard library only.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    signal, parent, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before we asked
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
