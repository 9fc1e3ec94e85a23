from django.apps import AppConfig
from django.db.models.signals import post_migrate


class RecipesConfig(AppConfig):
    name = "webapp.recipes"
    label = "recipes"

    def ready(self) -> None:
        from webapp.recipes.services import load_presets_after_migration

        post_migrate.connect(load_presets_after_migration, sender=self)
