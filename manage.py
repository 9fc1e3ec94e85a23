"""Django's command line for the platform: `python manage.py up` starts everything, `help` lists the rest."""

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.config.settings")
    if sys.argv[1:2] == ["up"]:
        print("Starloom: loading", flush=True)  # which takes a second
    from django.core.management import execute_from_command_line

    from webapp.config.servers import WrongUrl

    try:
        execute_from_command_line(sys.argv)
    except WrongUrl as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
