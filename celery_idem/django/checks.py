"""System checks: what ``manage.py check`` says about settings and databases."""
