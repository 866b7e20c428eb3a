"""A lock that many hold together, or one alone."""

from __future__ import annotations

from contextlib import closing

import pytest

from trtb.build.files import SharedLock


def test_many_hold_it_together_and_one_alone_only_where_no_other_does(tmp_path):
    path = tmp_path / "deep" / "lock"
    with closing(SharedLock(path, 0)) as one:
        with closing(SharedLock(path, 0)):
            assert not one.try_alone()
        assert one.try_alone()
        with pytest.raises(TimeoutError, match="held alone"):
            SharedLock(path, 0)
        one.share()
        with closing(SharedLock(path, 0)) as other:
            assert not other.try_alone()
            assert not one.try_alone()  # nor after the other has tried
    with closing(SharedLock(path, 0)) as last:
        assert last.try_alone()
