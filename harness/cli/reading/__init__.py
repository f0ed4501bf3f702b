"""Verbs about results that are there: report, compare, export, tag, pack and import."""
