from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("trajectories", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="trajectory",
            name="policy_steps",
            field=models.JSONField(
                db_default=[],
                default=list,
                help_text="[first position in the response, weight version] of each that sampled; empty if one did.",
            ),
        ),
    ]
