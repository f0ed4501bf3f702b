"""ONE RUN, MANY RUNS. run is the file to read first: nine steps.

choose (which backend), manifest, launch (how ranks come to life), watch, schedule and load (while it runs), summary;
many makes suites and campaigns of them, standing keeps a network up; interrupt undoes whatever happens.

May import: simulate, proof, net, results, spec, files, processes, contract, errors."""
