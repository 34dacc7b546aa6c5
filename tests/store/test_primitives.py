"""The primitives keep their promises, also when the file system reports errors."""

from __future__ import annotations

import errno
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from detslurm.store import NoHardLinks, StoreError, StoreFault, StoreFull, fs
from tests.store.faults import FULL_DISK, failing, race, races


def _litter(place: Path) -> list[str]:
    return [path.name for path in place.rglob("*.tmp")]


def _put_own_number(path: Path, number: int) -> bool:
    return fs.put_if_absent(path, b"%d" % number)


def test_put_if_absent_gives_a_name_once(place: Path) -> None:
    """The second writer of a name is refused and the first one's content stays."""
    assert fs.put_if_absent(place / "fact", b"first")
    assert not fs.put_if_absent(place / "fact", b"second")
    assert fs.read_file(place / "fact") == b"first"
    assert not _litter(place)


@pytest.mark.parametrize("workers", [2, 8])
def test_racing_writers_have_one_winner(place: Path, workers: int) -> None:
    """Of processes that race for one name exactly one is told that it won, and it did."""
    names = [place / str(number) for number in range(25)]
    won = races(workers, [partial(_put_own_number, name) for name in names])
    for name, each in zip(names, won, strict=True):
        assert Counter(each)[True] == 1
        assert fs.read_file(name) == b"%d" % each.index(True)


def test_a_reader_never_sees_half_a_fact(place: Path) -> None:
    """While facts appear, whoever opens one by name finds all of its content."""
    body = b"x" * 100_000

    def work(number: int) -> bool:
        names = [place / str(name) for name in range(50)]
        if number == 0:
            return all(fs.put_if_absent(name, body) for name in names)
        seen = [fs.read_file(name) for _ in range(20) for name in names]
        return all(content in (None, body) for content in seen)

    assert race(2, work) == [True, True]


@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST, errno.ESTALE, errno.ETIMEDOUT])
def test_a_link_whose_reply_got_lost_counts_as_won(place: Path, code: int) -> None:
    """After an error the link count decides: the server may have done it."""
    with failing("link", code, done=True):
        assert fs.put_if_absent(place / "fact", b"mine")
    assert fs.read_file(place / "fact") == b"mine"
    assert not _litter(place)


def test_a_lost_reply_is_not_mistaken_for_somebody_elses_link(place: Path) -> None:
    """A name that another process holds stays lost, whatever error the server gives."""
    fs.put_if_absent(place / "fact", b"theirs")
    assert not fs.put_if_absent(place / "fact", b"mine")
    with failing("link", errno.EIO), pytest.raises(StoreFault):
        fs.put_if_absent(place / "fact", b"mine")
    assert fs.read_file(place / "fact") == b"theirs"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV])
def test_a_file_system_without_hard_links_is_refused_with_the_reason(
    place: Path, code: int
) -> None:
    """The error says what is missing and what to do."""
    with failing("link", code), pytest.raises(NoHardLinks, match=r"no hard links.*doctor"):
        fs.put_if_absent(place / "fact", b"")
    assert not (place / "fact").exists()
    assert not _litter(place)


@pytest.mark.parametrize("code", FULL_DISK)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "close"])
def test_a_full_disk_names_itself_and_leaves_nothing(place: Path, call: str, code: int) -> None:
    """No quota or no space is told apart, with the path, and no half file is left."""
    skip = 0
    words = "quota" if code == errno.EDQUOT else "no space|no inodes"
    with (
        failing(call, code, skip=skip, done=call == "close"),
        pytest.raises(StoreFull, match=words) as caught,
    ):
        fs.put_if_absent(place / "fact", b"data")
    assert f"the file system of {place}" in str(caught.value)
    assert ".tmp" not in str(caught.value), "a name that nobody knows, and that is gone"
    assert not (place / "fact").exists()
    assert not _litter(place)
    assert fs.put_if_absent(place / "fact", b"data")


def test_a_short_write_is_continued(place: Path) -> None:
    """A kernel that takes part of the data gets the rest."""
    with failing("write", errno.EIO, times=1, part=3):
        assert fs.put_if_absent(place / "fact", b"0123456789")
    assert fs.read_file(place / "fact") == b"0123456789"


def test_io_errors_are_the_operations_not_the_stores(place: Path) -> None:
    """EIO fails one operation, and the next one works."""
    with failing("fsync", errno.EIO), pytest.raises(StoreFault) as caught:
        fs.put_if_absent(place / "fact", b"data")
    assert caught.value.errno == errno.EIO
    assert fs.put_if_absent(place / "fact", b"data")


@pytest.mark.parametrize("call", ["open", "fstat", "read"])
def test_a_stale_handle_is_opened_again_by_name(place: Path, call: str) -> None:
    """ESTALE while reading means that the name leads elsewhere now: the reader goes there."""
    fs.put_if_absent(place / "fact", b"data")
    with failing(call, errno.ESTALE, times=3):
        assert fs.read_file(place / "fact") == b"data"
    with failing("open", errno.ESTALE):
        assert fs.size_of(place / "fact") == 4


def test_a_handle_that_stays_stale_is_an_error_in_the_end(place: Path) -> None:
    """Reopening is bounded."""
    fs.put_if_absent(place / "fact", b"data")
    with failing("open", errno.ESTALE, times=1000), pytest.raises(StoreFault):
        fs.read_file(place / "fact")
    with failing("open", errno.ESTALE, times=1000), pytest.raises(StoreError):
        fs.size_of(place / "fact")


def test_an_expected_name_is_asked_for_twice(place: Path) -> None:
    """A cached "no such file" is not believed when the caller knows better."""
    fs.put_if_absent(place / "fact", b"data")
    with failing("open", errno.ENOENT):
        assert fs.read_file(place / "fact", expected=True) == b"data"
    assert fs.read_file(place / "nothing", expected=True) is None
    assert fs.read_file(place / "no" / "such" / "folder") is None


def test_a_directory_is_claimed_once(place: Path) -> None:
    """Of racing processes one gets the directory."""
    assert sorted(race(4, lambda _: fs.claim_directory(place / "id")))[-2:] == [False, True]


def test_a_snapshot_is_replaced_whole(place: Path) -> None:
    """A failed replacement leaves the old snapshot, and no litter."""
    fs.replace_file(place / "index", b"old")
    with failing("rename", errno.EIO), pytest.raises(StoreFault):
        fs.replace_file(place / "index", b"new")
    assert fs.read_file(place / "index") == b"old"
    assert not _litter(place)


def test_a_staged_tree_appears_whole_or_not_at_all(place: Path) -> None:
    """An error inside the block removes the stage; a good end publishes everything."""
    with pytest.raises(RuntimeError), fs.staged_directory(place / "code") as stage:
        Path(stage, "half.py").write_text("")
        raise RuntimeError
    assert fs.names_in(place) == []
    with fs.staged_directory(place / "code") as stage:
        Path(stage, "whole.py").write_text("")
        Path(stage, "dangling").symlink_to("nowhere")
    assert sorted(fs.names_in(place / "code")) == ["dangling", "whole.py"]
    with pytest.raises(StoreError, match="exists"), fs.staged_directory(place / "code") as stage:
        Path(stage, "other.py").write_text("")
    assert fs.names_in(place) == ["code"]


def test_a_rename_whose_reply_got_lost_counts_as_done(place: Path) -> None:
    """The stage is gone and the name is there: it was published."""
    with failing("rename", errno.EIO, done=True), fs.staged_directory(place / "code") as stage:
        Path(stage, "whole.py").write_text("")
    assert fs.names_in(place) == ["code"]
