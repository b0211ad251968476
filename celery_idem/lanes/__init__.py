"""Lanes: several queues, served by weight, rank or deadline. Urgent work overtakes."""
