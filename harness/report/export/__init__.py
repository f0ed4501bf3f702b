"""RESULTS FOR OTHER PROGRAMS: data frames, a value for Python and notebooks (handle), trackers, network simulators."""
