"""A program of our own at the hook: match, loss by a seeded chain, delay; its memory; its backend."""
