"""Data: embedded sets need nothing, fetched ones are resumed and checked, batches are a pure function of seed, rank,
step."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lossbench.workloads.errors import DataError
from lossbench.workloads.training.data import fetch
from lossbench.workloads.training.data.batches import Batches
from lossbench.workloads.training.data.fetch import File, Source, read
from lossbench.workloads.training.data.sets import SETS, load
from lossbench.workloads.training.tasks import spans

pytestmark = pytest.mark.training
CPU = torch.device("cpu")
CONTENT = bytes(range(256)) * 4000


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOSSBENCH_DATA", raising=False)
    monkeypatch.delenv("LOSSBENCH_OFFLINE", raising=False)
    return tmp_path / "cache"


def dealt(name: str, *, ranks: list[int], world: int = 4, seed: int = 0, items: int = 8) -> Batches:
    return Batches(load(name), ranks=ranks, world=world, items=items, seed=seed, device=CPU, window=32)


@pytest.mark.parametrize("name", ["digits", "digits32", "pydoc", "snips_small"])
def test_embedded_data_needs_no_download_and_is_real(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSBENCH_OFFLINE", "1")
    data = load(name)
    assert len(data.train[0]) > 1000 and len(data.valid[0]) > 300
    assert data.checksum() == load(name).checksum()


@pytest.mark.parametrize("name", ["digits", "pydoc", "snips_small"])
def test_in_an_epoch_every_item_goes_to_one_rank_once(name: str) -> None:
    batches = dealt(name, ranks=[0, 1, 2, 3])
    first = batches.at(0)[0]
    assert first.shape[:2] == (4, 8)
    orders = []
    for step in range(batches.steps_per_epoch):
        orders.append(batches._dealt(step))
    assert len(torch.cat(orders).unique()) == batches.steps_per_epoch * 32


@pytest.mark.parametrize("name", ["digits", "pydoc", "snips_small"])
def test_a_batch_depends_on_seed_rank_and_step_and_on_nothing_else(name: str) -> None:
    together, alone = dealt(name, ranks=[0, 1, 2, 3]), dealt(name, ranks=[2])
    later = alone.at(7)[0]
    for step in (0, 7, 500):
        torch.testing.assert_close(together.at(step)[0][2], alone.at(step)[0][0])
    torch.testing.assert_close(alone.at(7)[0], later)
    assert not torch.equal(alone.at(7)[0], dealt(name, ranks=[2], seed=1).at(7)[0])
    assert not torch.equal(alone.at(7)[0], dealt(name, ranks=[1]).at(7)[0])


def test_augmented_images_are_the_same_whoever_shares_the_process() -> None:
    data = load("digits32")
    data.about["augment"] = True
    keys = {"world": 4, "items": 8, "seed": 0, "device": CPU}
    both, one = Batches(data, ranks=[1, 3], **keys), Batches(data, ranks=[3], **keys)
    shaken = one.at(5)
    torch.testing.assert_close(both.at(5)[0][1], shaken[0][0])
    data.about["augment"] = False
    plain = Batches(data, ranks=[3], **keys).at(5)
    assert torch.equal(plain[1], shaken[1]) and not torch.equal(plain[0], shaken[0])


def test_too_few_items_for_so_many_ranks_is_said() -> None:
    with pytest.raises(DataError, match="too few for 64 ranks"):
        dealt("digits", ranks=[0], world=64, items=64)


def test_slots_are_counted_as_conlleval_does() -> None:
    assert spans(["O", "B-x", "I-x", "B-x", "I-y", "O", "I-z"]) == {(1, 3, "x"), (3, 4, "x"), (4, 5, "y"), (6, 7, "z")}


# --- fetching --------------------------------------------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; `cut` ends every answer early, `asked` remembers ranges."""

    cut: int | None = None
    asked: list[str | None] = []

    def do_GET(self) -> None:
        Handler.asked.append(self.headers.get("Range"))
        body = CONTENT
        if self.path.endswith(".tar.gz"):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
                info = tarfile.TarInfo("inside/file.bin")
                info.size = len(CONTENT)
                archive.addfile(info, io.BytesIO(CONTENT))
            body = buffer.getvalue()
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        if self.path.startswith("/wrong"):
            body = b"something else"
        start = int(self.headers["Range"].split("=")[1].rstrip("-")) if self.headers.get("Range") else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body) if Handler.cut is None else min(len(body), start + Handler.cut)
        self.wfile.write(body[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.cut, Handler.asked = None, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{one.server_port}"
        one.shutdown()


def wanted(*urls: str, archive: str = "") -> File:
    sources = tuple(Source(url=url, archive=archive) for url in urls)
    return File(name="set/file.bin", sha256=hashlib.sha256(CONTENT).hexdigest(), sources=sources, member="file.bin")


def test_a_file_is_downloaded_once_checked_and_kept(server: str, private_cache: Path) -> None:
    file = wanted(f"{server}/file.bin")
    assert read(file, None) == CONTENT
    assert read(file, None) == CONTENT
    assert len(Handler.asked) == 1
    assert (private_cache / "data" / "set" / "file.bin").read_bytes() == CONTENT


def test_an_interrupted_download_goes_on_where_it_stopped(server: str) -> None:
    Handler.cut = 300_000
    with pytest.raises(DataError, match="the connection ended after 300000 of 1024000 bytes"):
        read(wanted(f"{server}/file.bin"), None)
    Handler.cut = None
    assert read(wanted(f"{server}/file.bin"), None) == CONTENT
    assert Handler.asked == [None, "bytes=300000-"]


def test_a_file_inside_an_archive_is_found(server: str) -> None:
    assert read(wanted(f"{server}/all.tar.gz", archive="tar"), None) == CONTENT


def test_two_files_of_one_name_do_not_get_in_each_others_way(server: str) -> None:
    assert read(wanted(f"{server}/wrong/label", f"{server}/train/label"), None) == CONTENT
    other = File(
        name="set/other.bin", sha256=hashlib.sha256(CONTENT).hexdigest(), sources=(Source(url=f"{server}/test/label"),)
    )
    assert read(other, None) == CONTENT
    assert len(Handler.asked) == 3


def test_a_dead_or_lying_mirror_is_passed_over(server: str) -> None:
    assert read(wanted(f"{server}/missing", f"{server}/wrong", f"{server}/file.bin"), None) == CONTENT


def test_nothing_to_be_had_is_one_line_that_says_what_to_do(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"could not be downloaded .*404.*checksum differs.*--data-dir"):
        read(wanted(f"{server}/missing", f"{server}/wrong"), None)
    monkeypatch.setenv("LOSSBENCH_OFFLINE", "1")
    with pytest.raises(DataError, match="LOSSBENCH_OFFLINE is set: give --data-dir"):
        read(wanted(f"{server}/other.bin"), None)


def test_the_users_own_folder_comes_first_and_is_checked(tmp_path: Path, server: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin").write_bytes(CONTENT)
    assert read(wanted(f"{server}/file.bin"), tmp_path) == CONTENT
    assert not Handler.asked
    (tmp_path / "set" / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="damaged or another version"):
        read(wanted(f"{server}/file.bin"), tmp_path)


def test_a_damaged_cache_is_replaced(server: str, private_cache: Path) -> None:
    kept = private_cache / "data" / "set" / "file.bin"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"half")
    assert read(wanted(f"{server}/file.bin"), None) == CONTENT


def test_ranks_that_start_together_download_once(server: str) -> None:
    file = wanted(f"{server}/file.bin")
    threads = [threading.Thread(target=read, args=(file, None)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Handler.asked) == 1


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "file" / "data")
    with pytest.raises(DataError, match="can't be written .* set LOSSBENCH_CACHE"):
        read(wanted("http://127.0.0.1:9/x"), None)


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(DataError, match="no data set 'cifar': known are digits"):
        load("cifar")
    assert {"cifar10", "atis", "snips", "wikitext2", "shakespeare"} <= set(SETS)
