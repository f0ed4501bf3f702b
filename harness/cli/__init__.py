"""The command line: the only place that knows typer. Commands import what they need when they run: `--help` is quick,
and an ordinary user's namespace is entered before numpy starts its threads."""
