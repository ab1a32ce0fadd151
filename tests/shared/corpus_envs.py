"""Environments as people write them, each of a few lines, which hold their state in many ways."""

from __future__ import annotations

import abc
import bisect
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import importlib
import importlib.util
import itertools
import logging
import math
import operator
import random
import string
import threading
import types
import typing

import gymnasium
import numpy as np
from example_envs import TAXI
from gymnasium import spaces


class Game(gymnasium.Env):
    """Calls ``begin`` at each reset; ``play`` returns the reward of a step."""

    observation_space = spaces.Box(-1e12, 1e12, (1,), np.float64)
    action_space = spaces.Discrete(4)
    length = 23

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.begin()
        return np.zeros(1), {}

    def begin(self):
        pass

    def step(self, action):
        self.time += 1
        reward = float(self.play(int(action)))
        info = {"time": self.time}
        return np.array([reward]), reward, self.time >= self.length, False, info


ENVS = {}


def env(kind):
    ENVS[kind.__name__] = kind
    return kind


# -- games on boards and graphs ---------------------------------------------------------------


@env
class Snake(Game):
    def begin(self):
        self.body = collections.deque([(4, 4)], maxlen=9)
        self.food = tuple(self.np_random.integers(9, size=2).tolist())

    def play(self, action):
        dx, dy = ((0, 1), (1, 0), (0, -1), (-1, 0))[action]
        x, y = self.body[-1]
        self.body.append(((x + dx) % 9, (y + dy) % 9))
        if self.body[-1] == self.food:
            self.food = tuple(self.np_random.integers(9, size=2).tolist())
            return 10
        return len(self.body) + self.food[0]


@env
class GridWorld(Game):
    """Objects on a grid refer to each other and to the grid, as in MiniGrid."""

    class Cell:
        def __init__(self, grid, place):
            self.grid, self.place, self.content = grid, place, None

        @property
        def right(self):
            return self.grid.get((self.place[0] + 1, self.place[1]))

    def begin(self):
        self.grid = {}
        for place in itertools.product(range(4), range(4)):
            self.grid[place] = self.Cell(self.grid, place)
        self.agent = self.grid[0, int(self.np_random.integers(4))]

    def play(self, action):
        self.agent.content = self.time
        self.agent = self.agent.right or self.grid[0, action]
        return sum(cell.content or 0 for cell in self.grid.values())


class Piece(enum.Enum):
    EMPTY, CROSS, RING = range(3)


@env
class TicTacToe(Game):
    def begin(self):
        self.board = [[Piece.EMPTY] * 3 for _ in range(3)]
        self.history = []

    def play(self, action):
        row, column = divmod(int(self.np_random.integers(9)), 3)
        if self.board[row][column] is Piece.EMPTY:
            self.board[row][column] = Piece.CROSS if self.time % 2 else Piece.RING
            self.history.append(copy.deepcopy(self.board))
        return len(self.history) + sum(p.value for line in self.board for p in line)


@env
class Chess(Game):
    """Bitboards and a stack of undone moves."""

    def begin(self):
        self.boards = {color: (1 << 16) - 1 << shift for color, shift in (("w", 0), ("b", 48))}
        self.stack = []

    def play(self, action):
        if action == 0 and self.stack:
            self.boards = self.stack.pop()
        else:
            self.stack.append(dict(self.boards))
            self.boards["w"] ^= 1 << int(self.np_random.integers(64))
        return self.boards["w"].bit_count() + len(self.stack)


@env
class AdjacencyGraph(Game):
    def __init__(self):
        self.neighbours = collections.defaultdict(set)
        for a, b in itertools.combinations(range(6), 2):
            self.neighbours[a].add(b)
            self.neighbours[b].add(a)

    def begin(self):
        self.node = 0
        self.visited = collections.Counter()

    def play(self, action):
        self.node = sorted(self.neighbours[self.node])[action]
        self.visited[self.node] += 1
        return self.visited.most_common(1)[0][1]


@env
class Routing(Game):
    """A priority queue of events, as in simulators of networks."""

    def begin(self):
        self.number = itertools.count()
        self.queue = []

    def play(self, action):
        due = self.time + float(self.np_random.exponential())
        heapq.heappush(self.queue, (due, next(self.number), {"action": action}))
        while self.queue and self.queue[0][0] < self.time:
            heapq.heappop(self.queue)
        return len(self.queue) + self.queue[0][0] if self.queue else 0


@env
class LinkedList(Game):
    class Node:
        __slots__ = ("__weakref__", "after", "value")

        def __init__(self, value, after):
            self.value, self.after = value, after

    def begin(self):
        self.head = self.Node(0, None)
        self.head.after = self.head

    def play(self, action):
        self.head.after = self.Node(action, self.head.after)
        self.head = self.head.after
        return self.head.value + self.head.after.value


@env
class Tree(Game):
    class Leaf:
        def __init__(self, parent=None):
            self.parent, self.children, self.visits = parent, {}, 0

    def begin(self):
        self.root = self.here = self.Leaf()

    def play(self, action):
        self.here = self.here.children.setdefault(action, self.Leaf(self.here))
        node = self.here
        while node:
            node.visits += 1
            node = node.parent
        if action == 3:
            self.here = self.root
        return self.root.visits + self.here.visits


# -- finance, text, time ----------------------------------------------------------------------


@env
class Trading(Game):
    prices = np.cumsum(np.sin(np.arange(200.0)))  # a constant of the class

    def begin(self):
        self.day = int(self.np_random.integers(100))
        self.cash, self.shares = decimal.Decimal(1000), fractions.Fraction(0)
        self.when = datetime.datetime(2020, 1, 1)

    def play(self, action):
        self.day += 1
        self.when += datetime.timedelta(days=1)
        price = decimal.Decimal(repr(float(self.prices[self.day])))
        self.cash -= price * (action - 1)
        self.shares += fractions.Fraction(action - 1, 3)
        return float(self.cash) + float(self.shares) + self.when.weekday()


@env
class OrderBook(Game):
    def begin(self):
        self.bids = []

    def play(self, action):
        bisect.insort(self.bids, float(self.np_random.normal()))
        return self.bids[-1] - (self.bids.pop(0) if action == 0 else 0)


@env
class Columns(Game):
    """A table as a structured array, with views of its columns."""

    def __init__(self):
        self.table = np.zeros(8, [("open", "f8"), ("close", "f8"), ("volume", "i8")])
        self.close_prices, self.volume = self.table["close"], self.table["volume"]
        self.window = self.close_prices[2:6]

    def play(self, action):
        self.window[action] += self.np_random.normal()
        self.volume[self.time % 8] += action
        return self.table["close"].sum() + self.table["volume"].sum()


@env
class Words(Game):
    letters = frozenset(string.ascii_lowercase)
    scores: typing.ClassVar = {letter: k for k, letter in enumerate(string.ascii_lowercase)}

    def begin(self):
        self.word, self.used = "", set()

    def play(self, action):
        self.word += string.ascii_lowercase[int(self.np_random.integers(26))]
        self.used |= set(self.word)
        return sum(self.scores[each] for each in sorted(self.used)) + len(self.letters)


# -- ways of writing classes ------------------------------------------------------------------


@dataclasses.dataclass
class Body:
    mass: float = 1.0
    place: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2))
    speed: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2))
    trail: list = dataclasses.field(default_factory=list)


@env
class Dataclasses(Game):
    def begin(self):
        self.bodies = [Body(mass=float(self.np_random.random())) for _ in range(3)]
        self.heaviest = max(self.bodies, key=operator.attrgetter("mass"))

    def play(self, action):
        for body in self.bodies:
            body.speed += self.np_random.normal(size=2) / body.mass
            body.place += body.speed
            body.trail.append(body.place.copy())
        return self.heaviest.place.sum() + len(self.bodies[0].trail)


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    gain: float
    names: tuple = ("a", "b")


@env
class FrozenConfig(Game):
    def begin(self):
        self.config = Config(float(self.np_random.random()))

    def play(self, action):
        self.config = dataclasses.replace(self.config, gain=self.config.gain + action)
        return self.config.gain


class Clamped:
    """Descriptor that stores in the instance."""

    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, owner, kind=None):
        return self if owner is None else getattr(owner, self.name, 0.0)

    def __set__(self, owner, value):
        setattr(owner, self.name, min(value, 50.0))


@env
class Descriptors(Game):
    speed = Clamped()

    def play(self, action):
        self.speed = self.speed + action
        return self.speed


@env
class Properties(Game):
    @property
    def energy(self):
        return self.__energy

    @energy.setter
    def energy(self, value):
        self.__energy = value

    @functools.cached_property
    def table(self):
        return self.np_random.random(5)

    def begin(self):
        self.energy = 1.0
        self.__dict__.pop("table", None)

    def play(self, action):
        self.energy += self.table[action]
        return self.energy


class Scoring:
    def score(self, value):
        self.best = max(getattr(self, "best", 0.0), value)
        return self.best


class Logging:
    log = logging.getLogger(__name__)

    def score(self, value):
        self.scores = [*getattr(self, "scores", []), value][-5:]
        return super().score(value) + sum(self.scores)


@env
class Mixins(Logging, Scoring, Game):
    def play(self, action):
        return self.score(float(self.np_random.normal()) + action)


class Rule(abc.ABC):
    @abc.abstractmethod
    def apply(self, env): ...


class Grow(Rule):
    times = 0

    def apply(self, env):
        self.times += 1
        return self.times


class Shrink(Rule):
    def apply(self, env):
        return -env.time


@env
class Strategies(Game):
    def begin(self):
        self.rules = [Grow(), Shrink()]
        self.rule = self.rules[int(self.np_random.integers(2))]
        self.kind = type(self.rule)

    def play(self, action):
        if action == 0:
            self.rule = self.kind()
        return self.rule.apply(self)


@env
class NamedTuples(Game):
    Point = collections.namedtuple("Point", "x y")
    Point.__qualname__ = "NamedTuples.Point"

    def begin(self):
        self.point = self.Point(0, 0)

    def play(self, action):
        self.point = self.point._replace(x=self.point.x + action)
        return self.point.x


@env
class Subclasses(Game):
    class Inventory(dict):
        weight = 0.0

        def __missing__(self, key):
            self[key] = 0
            return 0

    class Path(list):
        pass

    def begin(self):
        self.inventory, self.path = self.Inventory(), self.Path()
        self.path.owner = self.inventory

    def play(self, action):
        self.inventory[action] += 1
        self.inventory.weight += action
        self.path.append(action)
        return self.path.owner.weight + self.inventory[2] + len(self.path)


@env
class Namespaces(Game):
    def begin(self):
        self.config = types.SimpleNamespace(gain=1.0, inner=types.SimpleNamespace(bias=0.0))

    def play(self, action):
        self.config.inner.bias += self.np_random.random()
        return self.config.gain + self.config.inner.bias


@env
class Flags(Game):
    class Mode(enum.IntFlag):
        UP, DOWN, FAST = 1, 2, 4

    def begin(self):
        self.mode = self.Mode.UP

    def play(self, action):
        self.mode ^= self.Mode(1 << (action % 3))
        return int(self.mode) + (self.mode & self.Mode.FAST == self.Mode.FAST)


def made_by_a_factory(gain):
    class Made(Game):
        def play(self, action):
            return gain * action + super().np_random.random()

    return Made


ENVS["Factory"] = made_by_a_factory(3.0)


# -- functions, callbacks, curricula ----------------------------------------------------------


@env
class Callbacks(Game):
    def __init__(self):
        self.seen, self.total = [], 0.0
        self.callbacks = {"step": [self.seen.append, self.add], "end": [self.seen.clear]}

    def add(self, value):
        self.total += value

    def play(self, action):
        for callback in self.callbacks["step"]:
            callback(action)
        if len(self.seen) > 7:
            self.callbacks["end"][0]()
        return self.total + len(self.seen)


@env
class Randomized(Game):
    """Domain randomization by closures."""

    def begin(self):
        gain, delay = self.np_random.random(), collections.deque([0.0] * 3, maxlen=3)

        def actuator(action):
            delay.append(action * gain)
            return delay[0]

        self.dynamics = {"actuator": actuator, "noise": lambda: self.np_random.normal() * gain}

    def play(self, action):
        return self.dynamics["actuator"](action) + self.dynamics["noise"]()


class Curriculum:
    def __init__(self):
        self.level, self.levels = 0, [lambda a: a, lambda a: 2 * a, lambda a: a**2]
        self.results = collections.deque(maxlen=4)

    def report(self, reward):
        self.results.append(reward)
        if sum(self.results) > 4:
            self.level = min(self.level + 1, 2)
            self.results.clear()

    @property
    def reward(self):
        return self.levels[self.level]


@env
class WithCurriculum(Game):
    def __init__(self):
        self.curriculum = Curriculum()

    def play(self, action):
        reward = self.curriculum.reward(action)
        self.curriculum.report(reward)
        return reward


@env
class RewardTerms(Game):
    def __init__(self):
        self.terms = [functools.partial(self.term, weight=w) for w in (1.0, 2.0)]
        self.used = 0

    def term(self, action, *, weight):
        self.used += 1
        return weight * action + self.used

    def play(self, action):
        return sum(term(action) for term in self.terms)


@env
class Noise(Game):
    def begin(self):
        self.noises = [
            functools.partial(self.np_random.normal, 0.0, 1.0),
            random.Random(int(self.np_random.integers(99))).gauss,
        ]

    def play(self, action):
        return self.noises[0]() + self.noises[1](0, 1)


@env
class Operators(Game):
    ways: typing.ClassVar = {"+": operator.add, "*": operator.mul, "max": max}

    def begin(self):
        self.way = self.ways[sorted(self.ways)[int(self.np_random.integers(3))]]
        self.function = math.sqrt if self.np_random.random() < 0.5 else math.log1p

    def play(self, action):
        return self.way(action, 3) + self.function(self.time)


@env
class StateMachine(Game):
    def begin(self):
        self.state = self.idle

    def idle(self, action):
        self.state = self.run if action > 1 else self.idle
        return 0

    def run(self, action):
        self.state = self.idle if action == 0 else self.run
        return self.time

    def play(self, action):
        return self.state(action)


@env
class Decorated(Game):
    def limited(self):
        def decorate(function):
            @functools.wraps(function)
            def call(action):
                call.calls += 1
                return function(action) if call.calls % 3 else 0.0

            call.calls = 0
            return call

        return decorate

    def begin(self):
        self.act = self.limited()(lambda action: action + 1.0)

    def play(self, action):
        return self.act(action)


@env
class Iterators(Game):
    def begin(self):
        self.order = itertools.cycle(self.np_random.permutation(5).tolist())
        self.numbers = enumerate(range(1000))

    def play(self, action):
        return next(self.order) + next(self.numbers)[0]


# -- generators, arrays, threads, tasks -------------------------------------------------------


@env
class ManyGenerators(Game):
    def __init__(self):
        self.streams = [np.random.default_rng(k) for k in range(3)]
        self.old, self.plain = np.random.RandomState(4), random.Random(5)

    def play(self, action):
        drawn = self.streams[action % 3].random() + self.old.rand() + self.plain.random()
        self.streams.append(self.streams.pop(0))
        return drawn


@env
class OneBitGenerator(Game):
    def __init__(self):
        bits = np.random.PCG64(3)
        self.new, self.old = np.random.Generator(bits), np.random.RandomState(bits)

    def play(self, action):
        return self.new.random() + self.old.random_sample() + self.old.standard_normal()


@env
class Particles(Game):
    def __init__(self):
        self.all = np.zeros((5, 4), order="F")
        self.places, self.speeds = self.all[:, :2], self.all[:, 2:]
        self.first = self.places[0]

    def begin(self):
        self.all[:] = self.np_random.normal(size=(5, 4))

    def play(self, action):
        self.places += self.speeds * 0.1
        self.first[0] += action
        return self.all.sum()


@env
class ReplayBuffer(Game):
    def __init__(self):
        self.memory = np.zeros((50, 3), np.float32)
        self.recent = self.memory[-5:]

    def play(self, action):
        self.memory[:-1] = self.memory[1:]
        self.memory[-1] = self.np_random.random(3)
        return self.recent.sum()


@env
class FrameBuffer(Game):
    def __init__(self):
        self.raw = bytearray(48)
        self.image = np.frombuffer(self.raw, np.uint8).reshape(4, 4, 3)

    def play(self, action):
        self.image[action] += 1
        return sum(self.raw)


@env
class ObjectArray(Game):
    def begin(self):
        self.cells = np.array([[None, Body()], [Body(), "wall"]], object)
        self.diagonal = self.cells[::-1, 0]

    def play(self, action):
        self.cells[0, 1].mass += action
        self.diagonal[0].mass += 1
        return self.cells[0, 1].mass + self.cells[1, 0].mass


@env
class MaskedArray(Game):
    def begin(self):
        self.legal = np.ma.array(np.zeros(4), mask=[True, False, False, True])

    def play(self, action):
        self.legal[action] = self.np_random.random()
        return float(self.legal.sum())


@env
class Locked(Game):
    def __init__(self):
        self.lock, self.condition = threading.RLock(), threading.Condition()
        self.ready, self.stack = threading.Event(), contextlib.nullcontext()
        self.total = 0

    def play(self, action):
        with self.lock, self.condition, self.stack:
            self.total += action + self.ready.is_set()
            (self.ready.set if action > 1 else self.ready.clear)()
        return self.total


class Goal:
    def __init__(self, place):
        self.place, self.solved = np.array(place), 0
        self.reward = lambda position: -float(np.abs(self.place - position).sum())


@env
class Goals(Game):
    def __init__(self):
        self.goals = [Goal([k, 2.0 * k]) for k in range(4)]

    def begin(self):
        self.goal = self.goals[int(self.np_random.integers(4))]
        self.position = np.zeros(2)

    def play(self, action):
        self.position += self.np_random.normal(size=2)
        self.goal.solved += 1
        return self.goal.reward(self.position) + sum(goal.solved for goal in self.goals)


class Simulator:
    """Of a library that pickles nothing, with hooks."""

    def __init__(self, gravity):
        self.handle, self.gravity, self.height = (each for each in ()), gravity, 10.0

    def __env_state__(self):
        return self.height

    def __set_env_state__(self, height):
        self.height = height

    def fall(self):
        self.height -= self.gravity
        return self.height


@env
class Simulators(Game):
    def __init__(self):
        self.worlds = {"earth": Simulator(9.8), "moon": Simulator(1.6)}

    def begin(self):
        self.world = self.worlds["earth" if self.np_random.random() < 0.5 else "moon"]
        self.world.height = 100.0

    def play(self, action):
        return self.world.fall() + action


@env
class NestedEnvs(Game):
    """An environment that holds others: an opponent's view, and a pool of copies."""

    def __init__(self):
        self.pool = [Snake(), Particles()]
        self.opponent = gymnasium.make("CartPole-v1")

    def begin(self):
        for each in (*self.pool, self.opponent):
            each.reset(seed=int(self.np_random.integers(99)))

    def play(self, action):
        if any(self.opponent.step(action % 2)[2:4]):
            self.opponent.reset()
        return self.pool[0].step(action)[1] + self.pool[1].step(action)[1]


@env
class LateAttributes(Game):
    def begin(self):
        for name in [name for name in vars(self) if name.startswith("late_")]:
            delattr(self, name)

    def play(self, action):
        setattr(self, f"late_{action}", self.time)
        return sum(value for name, value in vars(self).items() if name.startswith("late_"))


# -- wrappers ---------------------------------------------------------------------------------


def wrapped(name, *wrappers, **how):
    made = gymnasium.make(name, **how)
    for wrapper in wrappers:
        made = wrapper(made)
    return made


class Counting(gymnasium.Wrapper):
    def __init__(self, inner):
        super().__init__(inner)
        self.counts = collections.Counter()

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.counts[str(action)] += 1
        return obs, reward + max(self.counts.values()), *rest


W = gymnasium.wrappers
ENVS |= {
    "normalized": functools.partial(
        wrapped, "Pendulum-v1", W.NormalizeObservation, W.NormalizeReward, max_episode_steps=30
    ),
    "stacked": functools.partial(
        wrapped, "CartPole-v1", functools.partial(W.FrameStackObservation, stack_size=3)
    ),
    "time aware": functools.partial(wrapped, "CartPole-v1", W.TimeAwareObservation),
    "transformed": functools.partial(
        wrapped,
        "CartPole-v1",
        functools.partial(W.TransformReward, func=lambda reward: 2 * reward),
        functools.partial(W.TransformAction, func=lambda action: action, action_space=None),
    ),
    "counting": functools.partial(wrapped, "CartPole-v1", Counting),
    "sticky": functools.partial(
        wrapped, "MountainCar-v0", functools.partial(W.StickyAction, repeat_action_probability=0.4)
    ),
    "delayed": functools.partial(
        wrapped, "Acrobot-v1", functools.partial(W.DelayObservation, delay=2), max_episode_steps=40
    ),
    "frozen lake": functools.partial(wrapped, "FrozenLake-v1"),
    "taxi": functools.partial(wrapped, TAXI),
    "blackjack": functools.partial(wrapped, "Blackjack-v1"),
}

if importlib.util.find_spec("networkx"):

    @env
    class Networkx(Game):
        def begin(self):
            networkx = importlib.import_module("networkx")
            self.graph = networkx.gnp_random_graph(8, 0.5, int(self.np_random.integers(99)))
            self.node, self.edges = 0, self.graph.adj

        def play(self, action):
            near = sorted(self.edges[self.node]) or [0]
            self.node = near[action % len(near)]
            self.graph.nodes[self.node]["seen"] = self.time
            return sum(self.graph.nodes[k].get("seen", 0) for k in self.graph)


if importlib.util.find_spec("torch"):

    @env
    class RewardModel(Game):
        def __init__(self):
            torch = importlib.import_module("torch")
            self.weights = torch.zeros(4)
            self.first, self.array = self.weights[:2], self.weights.numpy()

        def play(self, action):
            self.first += float(self.np_random.random())
            self.array[action] += 1
            return float(self.weights.sum())
