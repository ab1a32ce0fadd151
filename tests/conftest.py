"""What all tests share."""

from __future__ import annotations

import hypothesis

# On a machine whose cores are shared, one slow example says nothing about the code.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("here")
