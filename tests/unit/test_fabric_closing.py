from __future__ import annotations

import pytest

from luwu.core.closing import close_after
from luwu.errors import StoreError


def _fail() -> None:
    raise StoreError("cannot sync the store")


def test_an_error_of_closing_is_raised() -> None:
    with pytest.raises(StoreError, match="cannot sync"):
        close_after(None, _fail)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), ValueError("mine")])
def test_an_exception_that_ends_the_block_stays(error, caplog) -> None:
    close_after(error, _fail)
    assert "cannot sync the store" in caplog.text
