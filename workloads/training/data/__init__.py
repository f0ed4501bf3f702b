"""Data sets by name: real data, embedded (no download) or fetched with a checksum; and batches that are pure
functions of a step."""
