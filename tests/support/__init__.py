"""Real servers, real workers and real faults for the tests. See README.md beside this file."""
