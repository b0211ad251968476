"""A small shop that takes payments while its workers are killed: ``make demo``."""
