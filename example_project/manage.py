"""Django's command line for the shop: ``python example_project/manage.py check``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line


def main() -> None:
    """Run one of Django's commands, or ``idem`` and ``dlq``."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.shop.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    # a script's own folder comes first; the package's parent is what is wanted
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    main()
