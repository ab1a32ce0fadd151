"""Write the intersphinx inventories of other libraries' documentation.

    python docs/make_inventories.py

An inventory maps names to documentation addresses. The libraries publish inventories with many
thousands of names. These inventories contain only the names that our pages mention, so the build
needs no network. The addresses follow each library's scheme. Sphinx uses the name as the anchor.
NumPy and torch have a page ``generated/NAME.html`` for most names, Python a section in the page of
the module, and Gymnasium a page per folder of its ``api``. If the build reports "reference target
not found" for a name, add it here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "_inventories"

SITES = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "gymnasium": "https://gymnasium.farama.org",
    "torch": "https://docs.pytorch.org/docs/stable",
    "stable_baselines3": "https://stable-baselines3.readthedocs.io/en/master",
    "pillow": "https://pillow.readthedocs.io/en/stable",
    "ray": "https://docs.ray.io/en/latest",
    "fastapi": "https://fastapi.tiangolo.com",
}

SB3 = "stable_baselines3.common.vec_env"

# Names by role and page.
NAMES: dict[str, dict[str, dict[str, str]]] = {
    "python": {
        "class": {
            "library/functions.html": "int float bool object type",
            "library/stdtypes.html": "str bytes bytearray memoryview dict list tuple set range "
            "frozenset",
            "library/asyncio-protocol.html": "asyncio.Protocol",
            "library/collections.abc.html": "collections.abc.AsyncIterator "
            "collections.abc.Awaitable collections.abc.Callable "
            "collections.abc.Collection collections.abc.Hashable collections.abc.Iterable "
            "collections.abc.Iterator collections.abc.Mapping collections.abc.MutableMapping "
            "collections.abc.Sequence",
            "library/abc.html": "abc.ABC",
            "library/argparse.html": "argparse.ArgumentParser argparse.Namespace",
            "library/enum.html": "enum.Enum enum.IntEnum",
            "library/ipaddress.html": "ipaddress.IPv4Network ipaddress.IPv6Network",
            "library/logging.html": "logging.Handler logging.LogRecord",
            "library/mmap.html": "mmap.mmap",
            "library/pathlib.html": "pathlib.Path",
            "library/socket.html": "socket.socket",
            "library/ssl.html": "ssl.SSLContext",
            "library/types.html": "types.ModuleType types.TracebackType",
            "library/typing.html": "typing.NamedTuple typing.Protocol typing.SupportsFloat "
            "typing.SupportsIndex",
        },
        "data": {
            "library/constants.html": "None True False",
            "library/typing.html": "typing.Any typing.Literal",
        },
        "attribute": {
            "library/multiprocessing.html": "multiprocessing.Process.exitcode",
        },
        "exception": {
            "library/exceptions.html": "ArithmeticError AttributeError BaseException "
            "ConnectionError EOFError Exception ImportError IndexError KeyError "
            "KeyboardInterrupt MemoryError NotImplementedError OSError RuntimeError TimeoutError "
            "TypeError ValueError",
        },
        "function": {
            "library/time.html": "time.monotonic time.perf_counter",
        },
        "method": {
            "library/select.html": "select.poll.poll",
        },
        "module": {
            "library/faulthandler.html": "faulthandler",
            "library/pickle.html": "pickle",
        },
    },
    "numpy": {
        "class": {
            "reference/generated/numpy.ndarray.html": "numpy.ndarray",
            "reference/generated/numpy.dtype.html": "numpy.dtype",
            "reference/arrays.scalars.html": "numpy.bool numpy.bool_ numpy.float32 numpy.float64 "
            "numpy.int32 numpy.int64 numpy.integer numpy.intp numpy.uint8 numpy.uint64",
            "reference/random/generator.html": "numpy.random.Generator",
        },
        "data": {
            "reference/typing.html": "numpy.typing.ArrayLike numpy.typing.NDArray",
        },
        "function": {
            "reference/generated/numpy.asarray.html": "numpy.asarray",
        },
    },
    "gymnasium": {
        "class": {
            "api/env/": "gymnasium.Env",
            "api/registry/": "gymnasium.envs.registration.EnvSpec",
            "api/spaces/": "gymnasium.spaces.Space",
            "api/spaces/fundamental/": "gymnasium.spaces.Box",
            "api/vector/": "gymnasium.vector.VectorEnv gymnasium.vector.AutoresetMode",
            "api/vector/async_vector_env/": "gymnasium.vector.AsyncVectorEnv",
            "api/vector/sync_vector_env/": "gymnasium.vector.SyncVectorEnv",
            "api/wrappers/": "gymnasium.Wrapper",
            "api/wrappers/misc_wrappers/": "gymnasium.wrappers.AtariPreprocessing",
        },
        "method": {
            "api/env/": "gymnasium.Env.get_wrapper_attr",
        },
    },
    "torch": {
        "class": {
            "tensors.html": "torch.Tensor",
            "tensor_attributes.html": "torch.device torch.dtype",
            "generated/torch.nn.Module.html": "torch.nn.Module",
            "generated/torch.cuda.streams.Event.html": "torch.cuda.streams.Event",
        },
    },
    "stable_baselines3": {
        "class": {
            "guide/vec_envs.html": f"{SB3}.DummyVecEnv {SB3}.SubprocVecEnv {SB3}.VecEnv",
        },
    },
    "pillow": {"class": {"reference/Image.html": "PIL.Image.Image"}},
    "ray": {"function": {"ray-core/api/doc/ray.init.html": "ray.init"}},
    "fastapi": {
        "class": {
            "reference/fastapi/": "fastapi.FastAPI",
            "reference/request/": "fastapi.Request",
            "reference/response/": "fastapi.Response",
        },
    },
}

# Maps names in definitions, annotations or docstrings to public names.
ALSO_CALLED = {
    "gymnasium": {
        "gymnasium.core.Env": "gymnasium.Env",
        "gymnasium.core.Wrapper": "gymnasium.Wrapper",
        "gymnasium.Space": "gymnasium.spaces.Space",
        "gymnasium.spaces.space.Space": "gymnasium.spaces.Space",
        "Space": "gymnasium.spaces.Space",
        "EnvSpec": "gymnasium.envs.registration.EnvSpec",
        "AutoresetMode": "gymnasium.vector.AutoresetMode",
        "VectorEnv": "gymnasium.vector.VectorEnv",
        "gymnasium.vector.vector_env.VectorEnv": "gymnasium.vector.VectorEnv",
        "gymnasium.vector.sync_vector_env.SyncVectorEnv": "gymnasium.vector.SyncVectorEnv",
        "gymnasium.vector.async_vector_env.AsyncVectorEnv": "gymnasium.vector.AsyncVectorEnv",
    },
    "numpy": {
        "NDArray": "numpy.typing.NDArray",
        "npt.ArrayLike": "numpy.typing.ArrayLike",
        "ndarray": "numpy.ndarray",
        "np.bool_": "numpy.bool_",
        "np.float64": "numpy.float64",
        "np.intp": "numpy.intp",
        "np.uint8": "numpy.uint8",
        "numpy.random._generator.Generator": "numpy.random.Generator",
    },
    "python": {"Path": "pathlib.Path"},
    "stable_baselines3": {
        "stable_baselines3.common.vec_env.base_vec_env.VecEnv": f"{SB3}.VecEnv",
        "stable_baselines3.common.vec_env.dummy_vec_env.DummyVecEnv": f"{SB3}.DummyVecEnv",
        "stable_baselines3.common.vec_env.subproc_vec_env.SubprocVecEnv": f"{SB3}.SubprocVecEnv",
    },
    "fastapi": {
        "fastapi.applications.FastAPI": "fastapi.FastAPI",
        "starlette.requests.Request": "fastapi.Request",
        "starlette.responses.Response": "fastapi.Response",
    },
}


def lines_of(library: str) -> Iterator[str]:
    """Yield the inventory lines of a library: name, role, priority, address, display name."""
    names = {
        name: (role, f"{page}#{'module-' if role == 'module' else ''}{name}")
        for role, pages in NAMES[library].items()
        for page, listed in pages.items()
        for name in listed.split()
    }
    for name, (role, address) in names.items():
        yield f"{name} py:{role} 1 {address} -\n"
    for name, public in ALSO_CALLED.get(library, {}).items():
        role, address = names[public]
        # Sphinx looks annotations up as classes.
        yield f"{name} py:class 1 {address} -\n"


def inventory_of(library: str) -> bytes:
    """Return the inventory in version 2 of Sphinx's format."""
    head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    return head.encode() + zlib.compress("".join(lines_of(library)).encode(), 9)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for library in SITES:
        (FOLDER / f"{library}.inv").write_bytes(inventory_of(library))


if __name__ == "__main__":
    main()
