"""The order of a run's requests: what is shared, who goes first, what is equal, what that gave."""
