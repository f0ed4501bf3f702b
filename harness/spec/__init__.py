"""WHAT IS ASKED. Pure: reads files that users write, decides, acts on nothing.

experiment is what a user writes; points makes a suite's points of it; topology, profile (with lossmodel, delay) and
about are its parts; placement turns it into rules at hooks; userfile checks what was typed.

May import: contract, errors."""
