"""Make the clone ready to run: check the machine, make both environments, DeepSpeed's C++ pieces and the front end.

    python3.11 scripts/setup.py        (`make setup` does this)

Safe to repeat: what is ready is left alone (a second run takes well under a second), what was cut short is
done again. Everything it writes lies in `.venv`, `.venv-sandbox`, `frontend/node_modules` and the platform's bundle.

This file itself must stay readable for old Pythons, so that they get an error message instead of a
SyntaxError.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NEEDED = (3, 11)


def use_needed_python():
    # type: () -> None
    """Stop on a Python the locks were not made for; leave `.venv`, which we may have to remake."""
    if sys.version_info[:2] != NEEDED:
        sys.exit(
            "setup: this is Python %d.%d (%s), but the pinned packages need Python 3.11.\n"
            "  Mend it: apt-get install python3.11 python3.11-venv python3.11-dev, "
            "or name one: make PYTHON=/path/to/python3.11 ..."
            % (sys.version_info[0], sys.version_info[1], sys.executable)
        )
    if os.path.realpath(sys.prefix).startswith(os.path.realpath(ROOT) + os.sep):
        outside = os.path.join(sys.base_prefix, "bin", "python3.11")
        os.execv(outside, [outside, os.path.abspath(__file__), *sys.argv[1:]])


if __name__ == "__main__":
    use_needed_python()
    sys.path[0] = ROOT  # `python scripts/setup.py` puts scripts/ there, which is no place to import from

    from scripts.prepare import main

    sys.exit(main())
