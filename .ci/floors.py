"""Print the minimum version of each requirement in setup.py as a pip constraint."""

import re
import runpy
from itertools import chain
from unittest import mock

with mock.patch("setuptools.setup") as setup:
    runpy.run_path("setup.py")
stated = setup.call_args.kwargs
extras = stated["extras_require"].values()
for requirement in sorted({*stated["install_requires"], *chain(*extras)}):
    parts = re.fullmatch(r"([\w.-]+)(?:\[.*?\])?[>=]=([\w.]+)[^;]*(;.*)?", requirement)
    if parts is None:
        raise SystemExit(f"setup.py: {requirement!r} states no minimum version")
    name, floor, marker = parts.groups(default="")
    print(f"{name}=={floor}{marker}")
