"""Settings of the whole suite: hypothesis draws the same examples every time, and says how to repeat one."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fm3", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fm3")
