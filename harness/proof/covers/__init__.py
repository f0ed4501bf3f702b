"""What a verdict speaks of: for every condition that can be asked and every backend, judged by what, or not judged.

conditions is the table, limits what of a judged cell nobody judges (a limit each), untold what a run counted of that,
rows what of both matters for one run. The one source of the tables in docs/fidelity.md (`lossbench schema covers
--markdown`), and of `covers` and `not_judged` in a run's verdict.json. tests/proof/test_table.py makes every judged
cell false on purpose and sees the fault doubted: a cell that it can't is not judged, and is to say so."""
