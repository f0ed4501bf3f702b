"""RESULTS FOR OTHER PROGRAMS: data frames, values for Python and notebooks (handle, comparison), trackers, network
simulators."""
