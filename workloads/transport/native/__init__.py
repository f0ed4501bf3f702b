"""The engine in C: its steps (engine.c), how it is compiled at first use (build.py), how Python asks it (engine.py)."""
