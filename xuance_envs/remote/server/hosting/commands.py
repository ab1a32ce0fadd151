"""Commands that a session runs on its environments, and the encoding of their replies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.space_rows import ALL_ENVS, SpaceRows
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.serialization import copy_of, loads
from xuance_envs.errors import EnvError
from xuance_envs.remote.server.hosting.hosted_vec_env import HostedVecEnv
from xuance_envs.remote.server.http import messages
from xuance_envs.remote.wire.bounds import TooLargeError
from xuance_envs.remote.wire.failures import RefusedError
from xuance_envs.remote.wire.formats import WireFormat, dumps
from xuance_envs.remote.wire.nodes import LazyList, WireError
from xuance_envs.remote.wire.spaces import space_to_wire
from xuance_envs.remote.wire.values import (
    batch_from_wire,
    batch_to_wire,
    drop_unsendable,
    from_client,
    to_wire,
)
from xuance_envs.vector_envs.action_writer import check_in_space

Answer = dict[str, Any]

LARGE_INFOS = 256 * 2**10  # pickled bytes; a reply's larger infos are unpickled one at a time


def describe(vec_env: HostedVecEnv) -> Answer:
    rewards = vec_env.reward_space
    return {
        **({} if rewards is None else {"reward_space": space_to_wire(rewards)}),
        "observation_space": space_to_wire(vec_env.observation_space),
        "action_space": space_to_wire(vec_env.action_space),
        "metadata": to_wire(drop_unsendable(vec_env.metadata)),
        "render_mode": to_wire(vec_env.render_mode),
        "max_episode_steps": int(vec_env.max_episode_steps),
        "checks_actions": vec_env.checks_actions,
    }


def reset(vec_env: HostedVecEnv, envs: Sequence[int], message: messages.Reset) -> Answer:
    some_envs = None if list(envs) == list(range(vec_env.num_envs)) else envs
    options = None if message.options is None else from_client(message.options)
    observations, infos = vec_env.reset(seed=message.seed, options=options, env_ids=some_envs)
    return _episodes_to_wire(vec_env, observations, _infos_to_wire(infos))


def _episodes_to_wire(vec_env: HostedVecEnv, observations: Any, infos: Any) -> Answer:
    return {
        "observations": batch_to_wire(vec_env.observation_space, observations),
        "infos": infos,
        **_action_masks(vec_env),
    }


def _action_masks(vec_env: HostedVecEnv) -> Answer:
    """Return the action masks of all environments, if the client has requested them."""
    masks = vec_env.watched_masks
    return {} if masks is None else {"masks": masks}


def step(vec_env: HostedVecEnv, layout: int | None = None) -> Answer:
    """Finish the pending step and return its reply, which is valid until the next step."""
    if (frame := vec_env.finish_step(layout)) is not None:
        return frame
    space, infos = vec_env.observation_space, vec_env.buf_infos
    resets: Answer = {"environments": [], "observations": None, "infos": []}
    if (ends := infos.ends) is not None:
        envs, reset_batch = ends.resets()
        resets = {
            "environments": envs.tolist(),
            "observations": batch_to_wire(space, vec_env.take_reset_observations(envs)),
            "infos": _batch_to_wire(reset_batch, envs),
        }
    return {
        "observations": batch_to_wire(space, vec_env.buf_obs),
        "rewards": vec_env.exact_rewards,
        "terminated": vec_env.buf_dones,
        "truncated": vec_env.buf_truncations,
        "infos": _infos_to_wire(infos),
        "resets": resets,
        **_action_masks(vec_env),
    }


_requests = itertools.count(1)


def repeat(
    vec_env: HostedVecEnv, envs: Sequence[int], message: messages.Step
) -> tuple[Answer, int]:
    """Repeat each environment's action; return the reply and the total number of steps."""
    count, space = len(envs), vec_env.action_space
    rows = SpaceRows.allocate(SpaceLayout(space), count)
    rows.put(batch_from_wire(space, message.actions, count, from_client), ALL_ENVS, count)
    if vec_env.checks_actions:
        check_in_space(rows, envs)
    action_of = dict(zip(envs, rows.reader()(), strict=True))
    results = vec_env.call("repeat", action_of, message.steps, next(_requests), env_ids=envs)
    space = vec_env.observation_space
    steps = [each.steps for each in results]
    answer = {
        "observations": [batch_to_wire(space, each.observations) for each in results],
        "lengths": np.maximum(steps, 1),
        "rewards": np.array([each.reward for each in results], np.float64),
        "terminated": np.array([each.terminated for each in results]),
        "truncated": np.array([each.truncated for each in results]),
        "infos": _pickled_infos_to_wire([each.info for each in results]),
    }
    return answer, sum(steps)


def invoke(
    vec_env: HostedVecEnv, envs: Sequence[int], message: messages.Call
) -> tuple[Answer, Sequence[Any]]:
    operation, name = message.operation, message.name
    results: Sequence[Any]
    if operation == "render":
        results = vec_env.render(message.mode, envs)
    elif operation == "action_masks":
        results = vec_env.watch_masks(envs)
    elif operation == "get_attr":
        results = vec_env.get_attr(name, envs)
    elif operation == "set_attr":
        vec_env.set_attr(name, list(map(from_client, message.values)), envs)
        results = [None] * len(envs)
    else:
        keywords = {key: from_client(value) for key, value in message.kwargs.items()}
        arguments = map(from_client, message.args)
        results = vec_env.call(name, *arguments, env_ids=envs, **keywords)
    return {"results": _each_to_wire(envs, results, operation)}, results


def load_states(
    vec_env: HostedVecEnv,
    envs: Sequence[int],
    repeating: bool,
    load: Callable[[HostedVecEnv], tuple[Any, StepInfos]],
) -> Answer:
    observations, infos = load(vec_env)
    if not repeating:
        return _episodes_to_wire(vec_env, observations, _infos_to_wire(infos))
    rows = SpaceRows.allocate(SpaceLayout(vec_env.observation_space), len(envs))
    rows.put(observations, ALL_ENVS, len(envs))
    shown = list(infos)
    for i, last_shown in enumerate(vec_env.get_attr("last_shown", envs)):
        if last_shown is not None:
            rows.row(i, copy_of)[:], shown[i] = last_shown
    return _episodes_to_wire(vec_env, rows.copy(), _pickled_infos_to_wire(shown))


def _infos_to_wire(infos: StepInfos) -> list[Any] | LazyList:
    """Encode infos; if they are large, one at a time while the message is encoded."""
    return _batch_to_wire(infos.parts[0], infos.envs)


def _batch_to_wire(batch: InfoBatch, envs: NDArray[np.intp]) -> list[Any] | LazyList:
    pickled = [frozen for _, frozen in batch.rest.values() if isinstance(frozen, bytes)]
    if sum(map(len, pickled)) <= LARGE_INFOS:
        return list(map(_info_to_wire, batch.dicts(envs)))
    built = (batch.build(position, env) for position, env in enumerate(envs.tolist()))
    return LazyList(map(_info_to_wire, built), len(envs))


def _pickled_infos_to_wire(infos: Sequence[Any]) -> list[Any] | LazyList:
    nodes = (_info_to_wire(loads(each) if isinstance(each, bytes) else each) for each in infos)
    if sum(len(each) for each in infos if isinstance(each, bytes)) <= LARGE_INFOS:
        return list(nodes)
    return LazyList(nodes, len(infos))


def _info_to_wire(info: Any) -> Any:
    """Encode an info; omit values that cannot be sent: an error would lose the executed step."""
    try:
        return to_wire(info)
    except WireError:
        return to_wire(drop_unsendable(info))


def _each_to_wire(envs: Sequence[int], values: Any, command: str) -> list[Any]:
    nodes = []
    for env, value in zip(envs, values, strict=True):
        try:
            nodes.append(to_wire(value))
        except WireError as error:
            reason = f"the result cannot be sent to the client: {error}"
            raise EnvError(env, command, reason) from None
    return nodes


class ReplyEncoder:
    """Encoder of replies; replies beyond the limit are refused."""

    def __init__(self, space: Space[Any], limit: int) -> None:
        self._limit = limit
        self._sizes = {WireFormat.MSGPACK: 0, WireFormat.JSON: 0}  # of one observation
        for leaf in SpaceLayout(space).leaves:
            if leaf.dtype is not None:
                count = math.prod(leaf.shape)
                self._sizes[WireFormat.MSGPACK] += count * leaf.dtype.itemsize
                self._sizes[WireFormat.JSON] += count * _max_json_chars(leaf.dtype)

    def encode(self, reply: Any, wire_format: WireFormat) -> bytes:
        try:
            return dumps(reply, wire_format, self._limit)
        except TooLargeError as error:
            raise RefusedError(413, "reply", str(error)) from None

    def check(self, size: int) -> None:
        if size > self._limit:
            raise RefusedError(413, "reply", str(TooLargeError(self._limit)))

    def max_bytes(self, count: int, wire_format: WireFormat) -> int:
        """Return the maximum encoded size of the fixed-shape parts of ``count`` observations."""
        return self._sizes[wire_format] * count


def _max_json_chars(dtype: np.dtype[Any]) -> int:
    """Return the maximum number of characters of a number in JSON, including a separator."""
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return max(len(str(bounds.min)), len(str(bounds.max))) + 1
    return 6 if dtype.kind == "b" else 25


def is_rgb_image(frame: Any) -> bool:
    """Return whether the status page can show a rendered frame."""
    return (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
        and 0 < frame.size <= 4 * 2**20
    )
