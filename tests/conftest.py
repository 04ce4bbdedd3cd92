"""Shared by all tests."""

import os

from hypothesis import settings

# A deadline measures how busy the machine is. In CI the examples are the same every time.
settings.register_profile("basin", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("basin")
