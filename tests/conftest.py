"""What all tests share."""

from __future__ import annotations

import contextlib
import gc
import signal

import hypothesis

# On a machine whose cores are shared, one slow example says nothing about the code.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that puts the tests into the background has them ignore what many of them send.
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):
    import tqdm

    # The thread that watches progress bars would stay; to fork beside a thread is warned about.
    tqdm.tqdm.monitor_interval = 0


def pytest_collection_finish() -> None:
    """Spares the collector what stays anyway: going through all of it takes a fifth of a second."""
    gc.collect()
    gc.freeze()
