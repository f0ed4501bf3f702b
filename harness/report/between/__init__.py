"""Two results: compare says what differs, agreement whether a replay came out alike, limits whether it is too much."""
