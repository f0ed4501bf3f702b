"""Everything that talks to the kernel about networks."""
