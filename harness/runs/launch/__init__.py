"""How a program comes to life at its place: program (what, and launchers), environment, ranks (all of a run), nursery
(forks); conclude (what its own module says of all its ranks at the end)."""
