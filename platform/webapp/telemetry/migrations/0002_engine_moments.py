import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0001_initial"),
        ("telemetry", "0001_initial"),
    ]

    operations = [
        migrations.AlterField(
            model_name="metricpoint",
            name="key",
            field=models.CharField(help_text="`reward`, `seconds.sampling`, `pass@1`.", max_length=120),
        ),
        migrations.CreateModel(
            name="EngineMoment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("revision", models.BigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("stage", models.CharField(max_length=50)),
                ("step", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("engines", models.JSONField(help_text="Engine -> metric -> value; null: not a finite number.")),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.run"
                    ),
                ),
            ],
            options={
                "ordering": ("at", "id"),
                "indexes": [
                    models.Index(fields=["run", "at"], name="engine_moment_at"),
                    models.Index(fields=["run", "revision"], name="engine_moment_since"),
                ],
            },
        ),
    ]
