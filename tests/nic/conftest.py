"""What tests of a NIC need: a wire of their own, and a profile that loses every packet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nic.wire import Wire, wired


@pytest.fixture
def wire() -> Iterator[Wire]:
    with wired() as made:
        yield made


@pytest.fixture
def everything(tmp_path: Path) -> str:
    path = tmp_path / "everything.toml"
    path.write_text('why = "test"\n[loss]\nmodel = "iid"\npercent = 100.0\n')
    return str(path)
