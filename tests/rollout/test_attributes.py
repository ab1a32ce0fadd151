"""Every attribute of a rollout, compared with the simple way of finding it."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

import numpy as np
import pytest
import torch
from gymnasium import spaces
from play_envs import PlayEnv
from rollout_reference import Player, Reference, StagedTransfer, converter, parts_of

import xuance_envs.rollout.results as results_module
from xuance_envs import DummyVecEnv, RolloutCollector, SubprocVecEnv
from xuance_envs.engine.data import buffer_pool

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (8, 6, 3), np.uint8)
STACKED = spaces.Box(0, 255, (8, 6, 12), np.uint8)
CHANNELS_FIRST = spaces.Box(0, 255, (3, 8, 6), np.uint8)
DICT = spaces.Dict(
    camera=IMAGE, speed=VECTOR, inner=spaces.Dict(gear=spaces.Discrete(5), level=spaces.Box(0, 1))
)
TWO = spaces.Discrete(2)

OBSERVATIONS = {
    "vector": (VECTOR, {}, converter()),
    "float64": (spaces.Box(-1, 1, (2, 2), np.float64), {}, converter()),
    "number": (spaces.Discrete(7), {}, converter()),
    "bits": (spaces.MultiBinary(4), {}, converter()),
    "image": (IMAGE, {}, converter(moved=True)),
    "stacked images": (STACKED, {}, converter(moved=True)),
    "image as it is": (IMAGE, {"channels_first": False}, converter()),
    "channels first": (CHANNELS_FIRST, {}, converter()),
    "moved in any case": (CHANNELS_FIRST, {"channels_first": True}, converter(moved=True)),
    "bytes": (STACKED, {"state_dtype": torch.uint8}, converter(torch.uint8, moved=True)),
    "doubles": (VECTOR, {"state_dtype": torch.float64}, converter(torch.float64)),
    "dict": (DICT, {}, converter(moved=["camera"])),
    "tuple": (spaces.Tuple((VECTOR, spaces.Discrete(3))), {}, converter()),
}
ACTIONS = {
    "Discrete": TWO,
    "Discrete from -1": spaces.Discrete(3, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([2, 5]),
    "MultiBinary": spaces.MultiBinary(4),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "Box of float64": spaces.Box(-1, 1, (2, 2), np.float64),
}
BACKENDS = {
    "dummy": DummyVecEnv,
    "dummy, copy=False": partial(DummyVecEnv, copy=False),
    "workers": partial(SubprocVecEnv, context="forkserver", in_series=2, copy=False),
    "caller steps": partial(SubprocVecEnv, context="forkserver", in_series=2, caller_steps=True),
}
LENGTHS = ((3, 1, 4), (2, 5), (1,), (7, 2), (30,))
"""By environment: its episodes' lengths; one ends at every step, one outlasts a rollout."""


@pytest.fixture(params=["here", "staged"])
def device_kind(request, monkeypatch):
    if request.param == "staged":
        monkeypatch.setattr(results_module, "Transfer", StagedTransfer)


def env_fns(observation_space, action_space, **options):
    return [
        partial(PlayEnv, number, observation_space, action_space, lengths, **options)
        for number, lengths in enumerate(LENGTHS)
    ]


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
    for one, other in zip(parts_of(found), parts_of(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one, other)


def assert_same_rollout(collector, reference):
    exact = "states actions rewards values log_probs done_flags trunc_flags end_states ep_counts"
    for name in [*exact.split(), "t_states"]:
        assert_same(getattr(collector, name), getattr(reference, name))
    assert type(collector.total_return) is np.float32
    assert collector.total_return == pytest.approx(reference.total_return, rel=1e-6)
    for one, other in (
        (collector.rolling_ep_returns, reference.returns),
        (collector.rolling_ep_lengths, reference.lengths),
    ):
        assert len(one) == len(other)
        assert all(a == pytest.approx(b) for a, b in zip(one, other, strict=True))
    returns = [r for found in reference.returns for r in found]
    lengths = [n for found in reference.lengths for n in found]
    for name, expected in {
        "mean_ep_return": np.mean(returns),
        "lower_ep_return": np.percentile(returns, 5),
        "median_ep_return": np.median(returns),
        "upper_ep_return": np.percentile(returns, 95),
        "max_ep_return": max(r for found in reference.all_returns for r in found),
        "mean_ep_length": np.mean(lengths),
        "median_ep_length": np.median(lengths),
    }.items():
        assert getattr(collector, name) == pytest.approx(expected), name


def compare(backend, observations, actions, *, rollouts=3, steps=6, **options):
    observation_space, arguments, convert = OBSERVATIONS[observations]
    functions = env_fns(observation_space, ACTIONS[actions], **options)
    reference = Reference(functions, Player(ACTIONS[actions]), steps, convert)
    agent = Player(ACTIONS[actions])
    with RolloutCollector(BACKENDS[backend](functions), agent, steps, **arguments) as collector:
        for number in range(1, rollouts + 1):
            collector.rollout()
            reference.rollout()
            assert_same_rollout(collector, reference)
            assert collector.global_steps == number * steps * len(LENGTHS)
            assert_same_advantages(collector, reference)
    return collector


def assert_same_advantages(collector, reference):
    state = collector.agent.random.get_state()
    for gamma, gae_lambda in ((0.9, 0.8), (1.0, 1.0), (0.99, 0.0)):
        found = collector.advantages(gamma, gae_lambda)
        expected = reference.advantages(gamma, gae_lambda)
        assert (found.shape, found.dtype) == (expected.shape, torch.float32)
        assert not found.requires_grad
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for agent in (collector.agent, reference.agent):
        agent.random.set_state(state)  # they drew actions for end states, too


@pytest.mark.usefixtures("device_kind")
@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_every_attribute_is_as_the_simple_way_has_it_for_observations(observations):
    compare("dummy, copy=False", observations, "Discrete")


@pytest.mark.usefixtures("device_kind")
@pytest.mark.parametrize("actions", ACTIONS)
def test_every_attribute_is_as_the_simple_way_has_it_for_actions(actions):
    collector = compare("dummy", "vector", actions)
    is_box = isinstance(ACTIONS[actions], spaces.Box)
    assert collector.action_dtype is (torch.float32 if is_box else torch.int32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("observations", ["vector", "dict"])
def test_every_attribute_is_as_the_simple_way_has_it_for_backends(backend, observations):
    compare(backend, observations, "Discrete", told="record")


@pytest.mark.parametrize("told", ["nothing", "score", "record"])
def test_returns_and_lengths_come_from_whatever_tells_them(told):
    collector = compare("dummy", "vector", "Discrete", told=told, rollouts=9)
    assert len(collector.rolling_ep_returns[2]) == 10
    unit = {"nothing": 1, "score": 10, "record": 100}[told]
    assert collector.rolling_ep_lengths[2] == [unit] * 10


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_rollouts_of_any_length_go_on_where_the_last_one_stopped(steps):
    compare("dummy", "vector", "Discrete", steps=steps, rollouts=5, told="score")


def test_what_environments_receive_is_what_is_stored():
    functions = env_fns(VECTOR, ACTIONS["Box of float64"])
    envs = DummyVecEnv(functions)
    with RolloutCollector(envs, Player(ACTIONS["Box of float64"]), 6) as collector:
        collector.rollout()
        for i, env in enumerate(envs.envs):
            assert np.array_equal(np.array(env.received), collector.actions[:, i].numpy())
            assert all(action.dtype == np.float64 for action in env.received)


# --- the states as leaves -----------------------------------------------------------------------


@pytest.mark.usefixtures("device_kind")
@pytest.mark.parametrize(
    ("observations", "expected"),
    [("vector", True), ("image", True), ("doubles", True), ("bytes", False), ("dict", True)],
)
def test_states_are_a_fresh_leaf_that_requires_grad_unless_they_are_integers(
    observations, expected
):
    space, arguments, _ = OBSERVATIONS[observations]
    agent = Player(TWO)
    with RolloutCollector(DummyVecEnv(env_fns(space, TWO)), agent, 3, **arguments) as collector:
        for _ in range(2):
            collector.rollout()
            for part in parts_of(collector.states):
                assert (part.requires_grad, part.is_leaf, part.grad) == (expected, True, None)
                if expected:
                    (part * part).sum().backward()
                    assert torch.equal(part.grad, 2 * part)
    for part in parts_of(collector.end_states):
        assert not part.requires_grad
    assert not any(seen[-1] for call in agent.saw for seen in call), "an agent saw grads"


def test_a_backward_pass_of_every_rollout_in_turn_never_fails():
    weight = torch.ones(3, requires_grad=True)
    with RolloutCollector(DummyVecEnv(env_fns(VECTOR, TWO)), Player(TWO), 3) as collector:
        for _ in range(5):
            collector.rollout()
            loss = (collector.states * weight).square().sum() + collector.values.sum()
            loss.backward()
            assert collector.states.grad.shape == collector.states.shape


def test_nothing_but_the_states_requires_grad_even_if_the_agent_answers_with_parameters():
    class Parameters(Player):
        bias = torch.zeros(5, requires_grad=True)
        means = torch.ones((5, 2), requires_grad=True)

        def get_actions_and_values(self, states, actions=None):
            return self.means, self.bias, self.bias, self.bias

    box = ACTIONS["Box"]
    with RolloutCollector(DummyVecEnv(env_fns(VECTOR, box)), Parameters(box), 3) as collector:
        collector.rollout()
        assert collector.actions.eq(1).all()
        for name in ("actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"):
            assert not getattr(collector, name).requires_grad, name


# --- whoever holds a rollout keeps it -------------------------------------------------------------


def saved_by_autograd(collector):
    """The gradient of a loss that has to remember the states; nothing else holds them."""
    weight = torch.ones(3, requires_grad=True)
    loss = (collector.states * weight).sum()

    def gradient():
        return torch.autograd.grad(loss, weight, retain_graph=True)[0]

    return gradient


def gradient(collector):
    collector.states.square().sum().backward()
    return collector.states.grad


def gradient_in_the_same_memory(collector):
    collector.states.backward(collector.states.detach())
    return collector.states.grad


NAMES = "states actions rewards values log_probs done_flags trunc_flags end_states ep_counts"
HOLDERS = {
    **{name: attrgetter(name) for name in (*NAMES.split(), "t_states")},
    "detached": lambda collector: collector.states.detach(),
    "a row": lambda collector: collector.rewards[1],
    "a part": lambda collector: collector.states[1:2, 0].detach(),
    "turned": lambda collector: collector.values.t()[2:],
    "an array": lambda collector: collector.actions.numpy(),
    "a part of an array": lambda collector: collector.states.detach().numpy()[-1, 1:],
    "a buffer": lambda collector: memoryview(collector.log_probs.numpy()),
    "DLPack": lambda collector: np.from_dlpack(collector.rewards),
    "the storage": lambda collector: collector.rewards.untyped_storage(),
    "saved by autograd": saved_by_autograd,
    "its gradient": gradient,
    "a gradient in the same memory": gradient_in_the_same_memory,
    "advantages": lambda collector: collector.advantages(0.9, 0.9),
    "what the agent saw": lambda collector: collector.agent.kept.pop(),
    "what the agent saw in one environment": lambda collector: collector.agent.kept.pop()[2],
}


class Keeping(Player):
    """Keeps the last states that it saw; in their memory are the others."""

    def get_actions_and_values(self, states, actions=None):
        self.kept = [states]
        return super().get_actions_and_values(states, actions)


def values_of(held):
    held = held() if callable(held) else held
    return held.detach().numpy().copy() if isinstance(held, torch.Tensor) else np.array(held)


@pytest.fixture
def always_recycled(monkeypatch):
    """As if every array were big enough for its memory to be used again."""
    monkeypatch.setattr(buffer_pool, "MIN_POOLED_BYTES", 0)


@pytest.mark.usefixtures("device_kind", "always_recycled")
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_holds_of_a_rollout_stays_as_it_is(holder):
    with RolloutCollector(DummyVecEnv(env_fns(VECTOR, TWO)), Keeping(TWO), 6) as collector:
        held, expected = [], []
        for _ in range(4):
            collector.rollout()
            held.append(HOLDERS[holder](collector))
            expected.append(values_of(held[-1]))
            collector.agent.kept = None
        for _ in range(2):
            collector.rollout()
        for one, other in zip(held, expected, strict=True):
            np.testing.assert_array_equal(values_of(one), other)


@pytest.mark.usefixtures("device_kind", "always_recycled")
@pytest.mark.parametrize("observations", ["image", "dict", "bytes"])
def test_held_states_of_any_kind_stay_as_they_are(observations):
    space, arguments, _ = OBSERVATIONS[observations]
    envs = DummyVecEnv(env_fns(space, TWO), copy=False)
    with RolloutCollector(envs, Player(TWO), 3, **arguments) as collector:
        collector.rollout()
        held = [part.detach()[1:] for part in parts_of(collector.states)]
        expected = [part.clone() for part in held]
        for _ in range(3):
            collector.rollout()
        for one, other in zip(held, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.skipif(
    not buffer_pool.HAS_REFCOUNTS, reason="without the GIL, no memory is used again"
)
@pytest.mark.usefixtures("always_recycled")
@pytest.mark.parametrize(("held", "places"), [(0, 1), (1, 2)])
def test_memory_of_rollouts_that_nobody_holds_is_used_again(held, places):
    with RolloutCollector(DummyVecEnv(env_fns(IMAGE, TWO)), Player(TWO), 3) as collector:
        names = ("states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags")
        found, last = set(), []
        for _ in range(6):
            collector.rollout()
            found.add(tuple(getattr(collector, name).data_ptr() for name in names))
            last = [getattr(collector, name) for name in names][: held * len(names)]
        assert len(last) == held * len(names)
        assert len(found) == places


def test_a_rollout_that_raised_leaves_nothing_to_be_taken_for_its_result():
    with RolloutCollector(DummyVecEnv(env_fns(VECTOR, TWO)), Player(TWO), 3) as collector:
        collector.rollout()
        states, expected = collector.states, collector.states.clone()
        draw, collector.agent.draw = collector.agent.draw, None
        with pytest.raises(TypeError):
            collector.rollout()
        for name in NAMES.split():
            assert not hasattr(collector, name)
        with pytest.raises(RuntimeError, match="call rollout first"):
            collector.advantages(0.9, 0.9)
        assert torch.equal(states, expected)
        collector.agent.draw = draw
        collector.rollout()
        assert torch.equal(states, expected)


def test_an_agent_may_answer_with_the_same_tensors_every_time():
    class Reusing(Player):
        def __init__(self, space):
            super().__init__(space)
            self.kept = None

        def get_actions_and_values(self, states, actions=None):
            answer = super().get_actions_and_values(states, actions)
            if len(answer[2]) != len(LENGTHS):
                return answer
            if self.kept is None:
                self.kept = answer
            for old, new in zip(self.kept[:3], answer[:3], strict=True):
                old.copy_(new)
            return self.kept

    functions = env_fns(VECTOR, TWO)
    reference = Reference(functions, Player(TWO), 6, converter())
    with RolloutCollector(DummyVecEnv(functions), Reusing(TWO), 6) as collector:
        collector.rollout()
        reference.rollout()
        assert_same(collector.actions, reference.actions)
        assert_same(collector.values, reference.values)


# --- spaces and shapes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observations", "shape"),
    [
        ("vector", (3,)),
        ("number", ()),
        ("stacked images", (12, 8, 6)),
        ("channels first", (3, 8, 6)),
        ("dict", {"camera": (3, 8, 6), "inner": {"gear": (), "level": (1,)}, "speed": (3,)}),
    ],
)
def test_spaces_and_shapes_are_told(observations, shape):
    space, arguments, convert = OBSERVATIONS[observations]
    envs = DummyVecEnv(env_fns(space, TWO))
    with RolloutCollector(envs, Player(TWO), 3, **arguments) as collector:
        assert collector.state_shape == shape
        assert collector.state_space == space
        assert collector.action_space == TWO
        assert collector.device == torch.device("cpu")
        observation = space.sample()
        turned = collector.permute_state(observation)
        found, expected = parts_of(to_tensors(turned)), parts_of(convert(observation))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one.to(other.dtype), other)


def to_tensors(value):
    if isinstance(value, dict):
        return {key: to_tensors(inner) for key, inner in value.items()}
    return torch.as_tensor(np.asarray(value))


def test_permute_state_turns_batches_and_tensors_as_well():
    envs = DummyVecEnv(env_fns(IMAGE, TWO))
    with RolloutCollector(envs, Player(TWO), 3) as collector:
        batch = np.arange(2 * 8 * 6 * 3).reshape(2, 8, 6, 3)
        assert np.array_equal(collector.permute_state(batch), batch.transpose(0, 3, 1, 2))
        tensor = torch.from_numpy(batch)
        assert torch.equal(collector.permute_state(tensor), tensor.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("shape", "moved"),
    [
        ((84, 84, 4), True),
        ((210, 160, 12), True),
        ((6, 5, 12), True),
        ((3, 4, 3), True),
        ((8, 8, 8), True),
        ((4, 84, 84), False),
        ((1, 5, 5), False),
        ((17, 19, 19), False),
        ((19, 19, 17), True),
        ((3, 5, 5), False),
    ],
)
def test_images_are_turned_unless_their_channels_are_first_already(shape, moved):
    envs = DummyVecEnv(env_fns(spaces.Box(0, 255, shape, np.uint8), TWO))
    with RolloutCollector(envs, Player(TWO), 2) as collector:
        assert collector.state_shape == ((shape[2], *shape[:2]) if moved else shape)


@pytest.mark.parametrize(
    ("space", "action_space", "arguments", "said"),
    [
        (spaces.Text(5), TWO, {}, "fixed shape"),
        (VECTOR, spaces.Text(5), {}, "Discrete, MultiDiscrete, MultiBinary or Box"),
        (VECTOR, spaces.Dict(a=TWO), {}, "Discrete, MultiDiscrete, MultiBinary or Box"),
        (VECTOR, TWO, {"state_dtype": torch.uint8}, "state_dtype"),
        (spaces.Discrete(5), TWO, {"state_dtype": torch.uint8}, "state_dtype"),
        (VECTOR, TWO, {"state_dtype": torch.bfloat16}, "state_dtype"),
        (VECTOR, TWO, {"state_dtype": torch.complex64}, "state_dtype"),
        (VECTOR, TWO, {"channels_first": "last"}, "channels_first"),
        (VECTOR, TWO, {"channels_first": True}, "three axes"),
        (VECTOR, TWO, {"steps_per_env": 0}, "steps_per_env"),
        (VECTOR, TWO, {"window": 0}, "window"),
        (VECTOR, TWO, {"window": float("nan")}, "window: expected an int of at least 1, got nan"),
    ],
)
def test_what_cannot_be_collected_is_refused(space, action_space, arguments, said):
    arguments = {"steps_per_env": 3, **arguments}
    with (
        DummyVecEnv(env_fns(space, action_space)) as envs,
        pytest.raises(ValueError, match=said),
    ):
        RolloutCollector(envs, Player(TWO), **arguments)


def test_integer_dtypes_go_to_the_parts_of_a_dict_that_fit_them():
    envs = DummyVecEnv(env_fns(DICT, TWO))
    with RolloutCollector(envs, Player(TWO), 3, state_dtype=torch.uint8) as collector:
        collector.rollout()
        states = collector.states
        assert states["camera"].dtype is torch.uint8
        assert not states["camera"].requires_grad
        for part in (states["speed"], states["inner"]["gear"]):
            assert part.dtype is torch.float32
            assert part.requires_grad


def test_small_integers_fit_where_the_bounds_say_so():
    envs = DummyVecEnv(env_fns(spaces.Box(0, 200, (2,), np.int64), TWO))
    with RolloutCollector(envs, Player(TWO), 3, state_dtype=torch.uint8) as collector:
        collector.rollout()
        assert collector.states.dtype is torch.uint8


class ExceedingEnv(PlayEnv):
    """Exceeds its space at a reset, in a step, or at an episode's end."""

    def reset(self, **given):
        exceeds = self.told == "reset" or (self.told == "again" and self.episode == 0)
        return np.full(2, 300 if exceeds else 0), super().reset(**given)[1]

    def step(self, action):
        _, *results = super().step(action)
        return np.full(2, -1 if self.told == "step" else 255), *results


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize(("place", "got"), [("step", -1), ("again", 300)])
def test_observations_that_an_integer_dtype_cannot_hold_are_refused(place, got, halves):
    space = spaces.Box(0, 200, (2,), np.int64)
    make = partial(ExceedingEnv, 0, space, TWO, told=place)
    envs = SubprocVecEnv([make] * 2, context="forkserver", in_series=1)
    said = f"expected values from 0 to 255, because state_dtype is torch.uint8, got {got}"
    with RolloutCollector(
        envs, Player(TWO), 4, state_dtype=torch.uint8, halves=halves
    ) as collector:
        with pytest.raises(ValueError, match=said):
            collector.rollout()
        assert "states" not in vars(collector)


def test_after_refused_first_observations_the_environments_are_reset():
    space = spaces.Box(0, 200, (2,), np.int64)
    envs = DummyVecEnv([partial(ExceedingEnv, 0, space, TWO)] * 2)
    with RolloutCollector(envs, Player(TWO), 1, state_dtype=torch.uint8) as collector:
        collector.vec_step([0, 0])
        envs.set_attr("told", "reset")
        for reset in (collector.vec_reset, partial(collector.env_reset, 1)):
            with pytest.raises(ValueError, match="got 300"):
                reset()
        envs.set_attr("told", "nothing")
        collector.rollout()
        assert collector.states.tolist() == [[[0, 0], [0, 0]]]


def test_another_librarys_vector_environment_is_refused():
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", 2)
    with pytest.raises(TypeError, match="DummyVecEnv_Gym"):
        RolloutCollector(envs, Player(TWO), 3)
    envs.close()


def test_another_librarys_vector_environment_is_taken_when_it_is_wrapped():
    import gymnasium

    from xuance_envs.compat import from_gymnasium

    native = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    with RolloutCollector(from_gymnasium(native), Player(TWO), 60, seed=0) as collector:
        collector.rollout()
        ended = collector.done_flags.bool()
        assert ended.sum() > 3
        after = collector.states[1:][ended[:-1]]
        assert after.abs().max() <= 0.05, "these are not first states"
        last = collector.end_states.abs()
        assert ((last[:, 0] > 2.4) | (last[:, 2] > 0.2095)).sum() == ended.sum()
