"""`lossbench` at a terminal. The only typer; a verb is a file that asks and prints; what it prints comes from
elsewhere.

May import: api, runs, simulate, proof, net, report, results, spec, files, processes, contract, errors."""
