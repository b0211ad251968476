from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("celery_idem", "0002_letters"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunTime",
            fields=[
                (
                    "digest",
                    models.CharField(
                        editable=False, max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("task", models.TextField()),
                ("lane", models.TextField()),
                ("day", models.IntegerField(db_index=True)),
                ("bucket", models.IntegerField()),
                ("runs", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "run time",
                "db_table": "idem_run_time",
                "default_permissions": (),
            },
        ),
    ]
