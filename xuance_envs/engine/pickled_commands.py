"""Commands and replies as bytes, for workers outside this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xuance_envs._override import override
from xuance_envs.engine.backend import WorkerDriver
from xuance_envs.engine.group.protocol import ReplyType
from xuance_envs.engine.serialization import dumps_for_worker, loads, unpack_error
from xuance_envs.errors import WorkerDiedError


class PackedCommand(NamedTuple):
    command: str
    payload: bytes
    buffers: Sequence[Any] = ()


class PicklingDriver(WorkerDriver):
    """Driver of a worker outside this process; the worker may end by itself and be restarted."""

    kind_name = "a worker"  # in error messages

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False if the worker is known to have ended."""

    @abstractmethod
    def death_error(self) -> WorkerDiedError:
        """Return an error that reports how the worker ended; call only after the worker's end."""

    @override
    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        return dumps_for_worker(("step", (actions,)))

    @override
    def pack(self, command: str, *arguments: Any) -> PackedCommand:
        try:
            return PackedCommand(command, dumps_for_worker((command, arguments)))
        except Exception as error:
            raise TypeError(
                f"the arguments of {command!r} cannot be sent to {self.kind_name}, because they "
                f"cannot be pickled: {error}"
            ) from error

    @override
    def with_buffers(self, packed: PackedCommand, buffers: Sequence[Any]) -> PackedCommand:
        return packed._replace(buffers=buffers)

    def unpack(self, reply: int, payload: bytes) -> Any:
        """Deserialize a reply's payload, or raise the error that it contains."""
        if reply == ReplyType.FAILED:
            raise self._failure(unpack_error(payload))
        return loads(payload)

    def _failure(self, error: BaseException) -> BaseException:
        return error

    @override
    def thaw(self, frozen: bytes) -> Any:
        return loads(frozen)


def pickled_functions(functions: Sequence[Callable[..., Any]], lo: int, hint: str = "") -> bytes:
    """Pickle a worker's environment functions; an error for one of them ends with ``hint``."""
    try:
        return dumps_for_worker(functions)
    except Exception as error:
        for i, function in enumerate(functions):
            try:
                dumps_for_worker(function)
            except Exception as own_error:
                raise TypeError(
                    f"env_fns[{lo + i}] cannot be sent to a worker process, because it "
                    f"cannot be pickled: {own_error}{hint}"
                ) from own_error
        raise TypeError(f"env_fns cannot be pickled: {error}{hint}") from error
