"""The platform's settings for tests: a throw-away ``var/`` and nobody's servers.

pytest-django reads the settings before any conftest.py, so this is where ``STARLOOM_VAR`` has to be set; processes that
tests start inherit it. The embedded servers that these settings name are started by the fixtures of ``conftest.py``.
"""

import atexit
import os
import shutil
import tempfile


def remove(folder: str, owner: int) -> None:
    """Not when a child that was forked from us ends."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.config.settings"  # for processes that tests start: not these
os.environ["STARLOOM_VAR"] = tempfile.mkdtemp(prefix="starloom-tests-")
atexit.register(remove, os.environ["STARLOOM_VAR"], os.getpid())
_ELSEWHERE = ("DATABASE_URL", "VALKEY_URL", "STARLOOM_SANDBOX", "STARLOOM_SANDBOX_TOKEN")
for name in (*_ELSEWHERE, "STARLOOM_PORT", "STARLOOM_PLATFORM_URL", "STARLOOM_DEBUG"):
    os.environ.pop(name, None)

from webapp.config.settings import *  # noqa: E402, F403

# Rows of a test are the same with any of them, and a slow one costs every login a second.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
# Else WhiteNoise looks through every static file anew for each test client.
WHITENOISE_AUTOREFRESH = True
