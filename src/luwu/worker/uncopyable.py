"""Refuses copies of objects that are tied to a session."""

from __future__ import annotations

from typing import NoReturn

from luwu.core.errors import ConfigError


class Uncopyable:
    """Base of objects that must not be copied or pickled with a model: a copy would drive the original's store."""

    def __deepcopy__(self, memo: object) -> NoReturn:
        self._refuse_copy()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._refuse_copy()

    def _refuse_copy(self) -> NoReturn:
        raise ConfigError(
            "copying or pickling a parallelized model: expected it to stay with its session, whose store has its "
            "parameters; take luwu.full_state_dict(model)"
        )
