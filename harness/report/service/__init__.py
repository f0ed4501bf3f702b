"""A web service beside learning: runs arm by arm, and what a message costs in each."""
