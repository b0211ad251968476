"""Reading a project's source: parsed, never run."""
