from django.apps import AppConfig


class LiveConfig(AppConfig):
    name = "webapp.live"
    label = "live"

    def ready(self) -> None:
        from webapp.live import checks  # noqa: F401  (registers)
