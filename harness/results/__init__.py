"""WHAT A RUN LEAVES. No kernel, no run: works on a laptop.

models are the files; folders writes them, index finds them; samples, measures and naming say what is in them;
provenance and machine say where they come from; archive takes them elsewhere.

May import: spec, files, processes, contract, errors."""
