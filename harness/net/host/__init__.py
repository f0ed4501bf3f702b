"""A place with a network stack of its own: namespaces, how a process steps in, how a user without root gets to."""
