"""JSON schemas of what users write and of what runs leave."""

from __future__ import annotations

from typing import Any

from harness.experiment import Experiment
from harness.profile import Profile
from harness.results import RunSummary, SuitePlan, SuiteSummary

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def profile() -> dict[str, Any]:
    return Profile.model_json_schema()


def experiment() -> dict[str, Any]:
    """As a file is written: profiles also by name or path, the name from the file, a sweep, a full form."""
    out = Experiment.model_json_schema()
    out["required"] = [name for name in out.get("required", []) if name != "name"]
    dotted = {"type": "object", "description": "Dotted keys, for example impair.0.profile."}
    out["properties"]["full"] = {**dotted, "title": "Full", "description": "Changes for --full, and its own sweep."}
    entry = out["$defs"]["Impair"]["properties"]
    named = {"type": "string", "description": "A profile that comes along, or the path of a TOML file."}
    entry["profile"] = {"anyOf": [named, entry["profile"]]}
    return out


def suite() -> dict[str, Any]:
    return SuitePlan.model_json_schema()


def run() -> dict[str, Any]:
    return RunSummary.model_json_schema()


def result() -> dict[str, Any]:
    return SuiteSummary.model_json_schema()


KINDS = {"profile": profile, "experiment": experiment, "suite": suite, "run": run, "result": result}


def of(kind: str) -> dict[str, Any]:
    return {"$schema": DIALECT, "title": f"lossbench {kind}", **KINDS[kind]()}
