"""Runs on the machines of a lab. On each an agent: agent answers, crew keeps its processes, probes its ends of the
probes. Here: ground (what runs stand on), exchange (probes from machine to machine), remote (processes over there)."""
