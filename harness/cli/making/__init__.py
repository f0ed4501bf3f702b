"""Verbs that make results: run a suite, a file or any command; init writes such a file; replay runs a line again;
campaign runs suites by the clock, bundle takes one where there is no network."""
