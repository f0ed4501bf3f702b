"""What the commands about interfaces say: of what failed never that it is gone. Nothing is changed here."""

from __future__ import annotations

import pytest

from lossbench.cli.hardware import lab, nic
from lossbench.errors import NotAbleError, RunError, VanishedError


def test_what_could_not_be_taken_away_is_said_apart_from_what_others_changed() -> None:
    """As it was: "somebody else changed it meanwhile; what we added is gone", also of what had failed."""
    failed = RunError("filter x is still there", next_step="lossbench clean")
    with pytest.raises(RunError) as raised:
        nic._complain({"eth1": ["mtu: 1500, was 9000"], "eth2": []}, {"eth3": failed})
    text = str(raised.value)
    assert text == "eth3 was not taken away: filter x is still there; eth1: mtu: 1500, was 9000; lossbench clean"
    with pytest.raises(RunError, match="what we added is gone"):
        nic._complain({"eth1": ["mtu: 1500, was 9000"]}, {})
    nic._complain({"eth1": []}, {})


def test_a_machine_that_failed_is_never_said_to_end_by_itself() -> None:
    """As it was: "not reached; it ends there by itself" of every error, and the error's own words were not said."""
    words = lab.reverted_words(RunError("h1: filter x is still there", next_step="lossbench clean"))
    assert words == "not taken away (h1: filter x is still there; lossbench clean)"
    assert lab.reverted_words(NotAbleError("h1 (node1): refused")) == "not taken away (h1 (node1): refused)"
    assert lab.reverted_words(VanishedError("h1 is gone")) == "not known to be taken away (h1 is gone)"
    assert lab.reverted_words([]) == "as it was before" and "nothing of ours" in lab.reverted_words(None)
    assert "somebody else" in lab.reverted_words(["mtu"])
