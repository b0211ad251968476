"""Letters in Redis (or Valkey): a hash per letter, sorted sets to find them."""
