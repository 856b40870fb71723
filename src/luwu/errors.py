"""Every error that LuWu raises on purpose, for programs: ``from luwu.errors import StoreSpaceError``."""

from luwu.core.errors import *  # noqa: F403 - the list of names is there
from luwu.core.errors import __all__ as __all__
