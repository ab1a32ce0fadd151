"""What is said where XuanCe or Tianshou are missing."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from xuance_envs.compat import xuance


@pytest.mark.skipif(importlib.util.find_spec("xuance") is not None, reason="XuanCe is here")
def test_without_xuance_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="pip install xuance"):
        xuance.install()
    xuance.uninstall()


@pytest.mark.skipif(importlib.util.find_spec("tianshou") is not None, reason="Tianshou is here")
def test_without_tianshou_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="pip install tianshou"):
        importlib.import_module("xuance_envs.compat.tianshou")
