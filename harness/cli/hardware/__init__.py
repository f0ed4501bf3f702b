"""Verbs about real interfaces and machines: nic is of this one, lab are others over SSH."""
