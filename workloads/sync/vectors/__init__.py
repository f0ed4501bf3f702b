"""Parameters as one vector: flat (views into it), shards (a part with an optimizer of its own)."""
