"""WHAT IS SAID OF IT: results as tables, plots, a page, JUnit. The only scipy, matplotlib, jinja2; no kernel.

groups brings seeds together, inference is the statistics, content gathers all that is said of a suite; compare and
agreement are about two.

May import: results, spec, files, processes, contract, errors."""
