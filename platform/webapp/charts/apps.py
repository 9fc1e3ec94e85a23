from django.apps import AppConfig


class ChartsConfig(AppConfig):
    name = "webapp.charts"
    label = "charts"
