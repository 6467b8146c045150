"""A module whose import fails, because it needs a missing module."""

import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
