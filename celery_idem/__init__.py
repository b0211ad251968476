"""Background jobs whose effect happens once, on queues that deliver at least once."""
