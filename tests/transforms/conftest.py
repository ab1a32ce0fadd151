"""Leaves out what the contract's modules test without the backend they are run over."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract import leave_out_the_rest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_the_rest(config, items, Path(__file__).with_name("test_contract.py"))
