"""Django's settings. Everything that depends on the machine comes from the environment or from ``var/``.

STARLOOM_VAR     folder of everything that lasts (default: var/ in the clone)
STARLOOM_SOCKETS where the folder for unix sockets is made (default: /tmp); its path has to be short
DATABASE_URL     a Postgres of your own (default: the embedded one)
VALKEY_URL       a Valkey or Redis of your own (default: the embedded one)
STARLOOM_SANDBOX a sandbox of your own, with STARLOOM_SANDBOX_TOKEN (default: a node that `up` starts)
STARLOOM_HOST, STARLOOM_PORT   where the web server listens (default 127.0.0.1; the port of the last time, 8000)
STARLOOM_DEBUG=1 Django's debug pages; never for others than yourself
"""

import os

from csp.constants import NONE, SELF

from webapp.config import servers
from webapp.config.paths import ROOT, Var

VAR = Var.from_environment()
DEBUG = os.environ.get("STARLOOM_DEBUG") == "1"
SECRET_KEY = VAR.secret("secret_key")

HOST = os.environ.get("STARLOOM_HOST", "127.0.0.1")
PORT = int(os.environ.get("STARLOOM_PORT") or VAR.last_port or 8000)
PLATFORM_URL = os.environ.get("STARLOOM_PLATFORM_URL", f"http://127.0.0.1:{PORT}")
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *filter(None, os.environ.get("STARLOOM_HOSTS", "").split(","))]
CSRF_TRUSTED_ORIGINS = [PLATFORM_URL]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "channels",
    "django_htmx",
    "django_vite",
    "webapp.accounts",
    "webapp.datasets",
    "webapp.recipes",
    "webapp.runs",
    "webapp.telemetry",
    "webapp.trajectories",
    "webapp.live",
    "webapp.charts",
    "webapp.api",
    "webapp.ui",
    "webapp.machine",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "webapp.config.middleware.RequestIdMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "webapp.config.urls"
ASGI_APPLICATION = "webapp.config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

DATABASES = {"default": servers.database(VAR)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
USE_TZ = True
TIME_ZONE = "UTC"

# Files as they lie in the apps; what Vite built has a hash in its name and may be kept for ever.
STATIC_URL = "/static/"
STATIC_ROOT = VAR.path / "static"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
BUNDLE = ROOT / "platform/webapp/ui/static/ui/bundle"
DJANGO_VITE = {"default": {"manifest_path": BUNDLE / "manifest.json", "static_url_prefix": "ui/bundle"}}

# Nothing from elsewhere, no inline script, no eval. Model output is hostile: this is the second wall.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
# Other services of localhost share its cookies.
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "starloom_session", "starloom_csrf"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "webapp.api.authentication.ApiTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["webapp.api.permissions.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["webapp.api.renderers.StrictJsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["webapp.api.parsers.StrictJsonParser"],
    "DEFAULT_PAGINATION_CLASS": "webapp.api.pagination.KeysetPagination",
    "DEFAULT_FILTER_BACKENDS": ["webapp.api.filters.StrictFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "webapp.api.schema.ApiSchema",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "webapp.api.problems.handle",
    "URL_FORMAT_OVERRIDE": None,  # `?format=` is an unknown parameter like any other
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Starloom",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "webapp.api.schema.add_errors",
        "webapp.api.schema.add_contracts",
    ],
}

VALKEY = servers.valkey(VAR)
SANDBOX = servers.sandbox(VAR)
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [VALKEY.url], "prefix": "starloom"},
    }
}

CELERY_BROKER_URL = VALKEY.celery
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # for ever: a worker that gives up helps nobody
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 600}
CELERY_TASK_TIME_LIMIT = 300
CELERY_BEAT_SCHEDULE = {
    "look-after-runs": {"task": "webapp.runs.tasks.look_after_runs", "schedule": 5.0, "options": {"expires": 5}}
}
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR.path / "beat-schedule")

# How engines are started on this installation (``webapp.runs.launchers``), and when to look after them.
LAUNCHER = "webapp.machine.local_launcher.LocalLauncher"
LAUNCH_RETRIES = 8
START_AGAIN_S = 30
KILL_AGAIN_S = 10
SILENT_AFTER_S = 20

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {"httpx": {"level": "WARNING"}},
}
