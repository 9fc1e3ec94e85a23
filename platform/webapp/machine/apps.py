from django.apps import AppConfig


class MachineConfig(AppConfig):
    name = "webapp.machine"
    label = "machine"
