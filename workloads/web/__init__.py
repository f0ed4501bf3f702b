"""A web service on every host, and clients that ask it: web (clients), web.server (nginx, or the built-in one).

May import: workloads.errors, workloads.replay."""
