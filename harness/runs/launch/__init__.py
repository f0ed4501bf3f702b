"""How a program comes to life at its place: program (what, and launchers), environment, ranks (all of a run), nursery
(forks)."""
