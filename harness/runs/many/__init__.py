"""Many runs: suite (every point and seed of one experiment), campaign (suites in order of importance, by the clock)."""
