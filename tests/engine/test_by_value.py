"""What is defined in ``__main__`` or in a function, on its way to a worker and back."""

from __future__ import annotations

import pytest
from cloudpickle import cloudpickle
from scripts import run_script

from xuance_envs.engine.serialization import (
    dumps_for_worker,
    loads,
    pack_error,
    unpack_error,
)

CONTEXTS = ["spawn", "forkserver", "fork"]

ENVIRONMENT = """
    import abc, collections, dataclasses, enum, functools, sys
    import gymnasium, numpy as np
    from xuance_envs import EnvError, SubprocVecEnv

    COUNT = 0

    def helper():
        global COUNT
        COUNT += 1
        return COUNT

    class Base(abc.ABC):
        level = 1
        def told(self):
            return self.level, helper()

    class Value(Base):
        def __init__(self, x):
            self.x = x

    class Color(enum.Enum):
        RED = 1
        def shout(self):
            return self.name + "!"

    @dataclasses.dataclass
    class Point:
        x: float = 0.0
        seen = []

    Pair = collections.namedtuple("Pair", "a b")

    class MyError(ValueError):
        code = 1
        def __init__(self, text):
            super().__init__(text)
            self.text = text

    def make_local():
        class Local:
            level = 1
        return Local

    Local = make_local()

    class MyEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)
        steps = 0
        def reset(self, seed=None, options=None):
            return np.zeros(2, np.float32), {}
        def step(self, action):
            if action:
                raise MyError("mine")
            MyEnv.steps += 1
            for kind in (Base, Local):
                kind.level += 10
            MyError.code += 10
            Point.seen.append(1)
            info = {"value": Value(3), "color": Color.RED, "point": Point(2.0), "pair": Pair(1, 2),
                    "kinds": [Value, MyError, MyEnv], "local": Local(), "helper": helper,
                    "deep": {"list": [(Value(4), Color.RED)]}, "own": self.make_own()}
            return np.ones(2, np.float32), 1.0, False, False, info
        def make_own(self):
            class Own:
                def told(self):
                    return "own"
            return Own()
        def get(self):
            return Value(5), helper, Color.RED, Local(), lambda: 1

    def state_of(*kinds):
        return [(kind, name, value) for kind in kinds for name, value in vars(kind).items()
                if name != "__slotnames__"]  # where pickle keeps something

    KINDS = Base, Value, Color, Point, Pair, MyError, Local, MyEnv
    GLOBALS = globals()
"""

LOOK = """
    def look(context):
        envs = SubprocVecEnv([MyEnv] * 2, in_series=2, context=context)
        before = state_of(*KINDS)
        envs.reset()
        for _ in range(2):
            infos = envs.step([0, 0])[4]
            for info in infos:
                assert type(info["value"]) is Value and isinstance(info["value"], Base)
                assert info["color"] is Color.RED and type(info["point"]) is Point
                assert type(info["pair"]) is Pair and info["kinds"] == [Value, MyError, MyEnv]
                assert type(info["local"]) is Local and info["helper"] is helper
                assert type(info["deep"]["list"][0][0]) is Value
                assert info["own"].told() == "own"
        value, function, color, local, new = envs.call("get")[0]
        assert type(value) is Value and function is helper and color is Color.RED
        assert type(local) is Local and new() == 1
        envs.set_attr("value", Value(7))
        assert [type(value) for value in envs.get_attr("value")] == [Value] * 2
        try:
            envs.step([0, 1])
        except EnvError as error:
            assert type(error.__cause__) is MyError and error.__cause__.text == "mine"
        else:
            raise AssertionError
        after = state_of(*KINDS)
        assert len(before) == len(after)
        for (kind, name, old), (_, _, new) in zip(before, after):
            assert old is new, (kind, name)
        assert (Base.level, Local.level, MyError.code, MyEnv.steps, Point.seen) == (1, 1, 1, 0, [])
        for function in (Base.told, Value.__init__, Color.shout, MyEnv.step, helper):
            assert function.__globals__ is GLOBALS
        count = COUNT
        assert Value(1).told() == (1, count + 1) and COUNT == count + 1
"""


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_comes_back_is_of_the_callers_own_classes_which_stay_as_they_are(context, tmp_path):
    again = f"""
    look({context!r})
    look({context!r})  # now the classes have been to workers before
    print("as they were")
    """
    assert run_script(tmp_path, ENVIRONMENT + LOOK + again) == "as they were\n"


def test_so_it_is_in_a_notebook_and_with_restarts(tmp_path):
    """A notebook's ``__main__`` has no file."""
    notebook = """
    import logging, os, signal
    del __file__
    look("spawn")
    logging.disable()
    envs = SubprocVecEnv([MyEnv] * 2, in_series=1, on_worker_failure="restart")
    envs.reset()
    os.kill(envs.pids[0], signal.SIGKILL)
    envs.step([0, 0])
    infos = envs.step([0, 0])[4]
    assert type(infos[0]["value"]) is Value and infos[0]["helper"] is helper
    assert Value.level == 1 and Value.told.__globals__ is GLOBALS
    print("as they were")
    """
    assert run_script(tmp_path, ENVIRONMENT + LOOK + notebook) == "as they were\n"


def test_a_class_stays_as_it_is_in_a_worker_too(tmp_path):
    """What is sent to environments that count in class attributes must not reset these."""
    script = """
    class Counting(MyEnv):
        count = 0
        def count_up(self, value):
            Counting.count += 1
            assert isinstance(value, Counting.Value)
            return Counting.count, helper()

        class Value:
            def owner(self):
                return Counting

    with SubprocVecEnv([Counting]) as envs:
        counts = [envs.call("count_up", Counting.Value())[0] for _ in range(3)]
    assert counts == [(1, 1), (2, 2), (3, 3)], counts
    """
    run_script(tmp_path, ENVIRONMENT + script)


FUNCTIONS = """
    import functools, typing, gymnasium
    from xuance_envs import SubprocVecEnv

    @functools.lru_cache(maxsize=7, typed=True)
    def table(n):
        return n if n < 2 else table(n - 1) + table(n - 2)

    @functools.cache
    def cached(n):
        return [n]

    @functools.singledispatch
    def size(value):
        return 1

    @size.register
    def _(value: list):
        return sum(map(size, value))

    def shouting(function):
        @functools.wraps(function)
        def shout(*args):
            return function(*args).upper()
        return shout

    @shouting
    def name():
        return "name"

    Number = typing.NewType("Number", int)

    class MyEnv(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        @functools.cached_property
        def once(self):
            return object()

        @functools.lru_cache
        def method(self, n: Number) -> Number:
            return Number(table(n))

        def answers(self):
            assert self.once is self.once and cached(1) is cached(1)
            found = table(20), self.method(5), size([1, [2, 3]]), name()
            return *found, table.cache_parameters(), table.cache_info().currsize, table.__name__
"""


@pytest.mark.parametrize("context", CONTEXTS)
def test_functions_of_main_that_are_pickled_by_name_work_in_workers(context, tmp_path):
    script = f"""
    with SubprocVecEnv([MyEnv], context={context!r}) as envs:
        print(*envs.call("answers")[0])
        envs.set_attr("own", table)
        print(envs.get_attr("own")[0](30))
    """
    parameters = "{'maxsize': 7, 'typed': True}"
    told = f"6765 5 3 NAME {parameters} 7 table\n832040\n"
    assert run_script(tmp_path, FUNCTIONS + script) == told


def test_what_has_only_a_name_in_main_is_an_error_that_names_it(tmp_path):
    script = """
    class Sentinel:
        def __reduce__(self):
            return "NOTHING"

    NOTHING = Sentinel()

    def make():
        assert NOTHING
        return MyEnv()

    try:
        SubprocVecEnv([make], context="forkserver")
    except TypeError as error:
        print(error)
    """
    told = run_script(tmp_path, FUNCTIONS + script)
    assert told.startswith("'NOTHING' was pickled by name from __main__")
    assert "in an importable module" in told


def test_what_a_module_defines_that_workers_cannot_import_goes_by_value(tmp_path):
    script = """
    import cloudpickle, types
    from xuance_envs import Gym_Env
    mine = types.ModuleType("mine")
    exec("from xuance_envs import Gym_Env\\n"
         "class Env(Gym_Env):\\n"
         "    def get(self):\\n"
         "        return helper, Env\\n"
         "def make(): return Env('CartPole-v1')\\n"
         "def helper(): return 3\\n", vars(mine))
    sys.modules["mine"] = mine
    cloudpickle.register_pickle_by_value(mine)
    with SubprocVecEnv([mine.make] * 2, context="forkserver") as envs:
        helper, kind = envs.call("get")[0]
        print(helper is mine.helper, kind is mine.Env, helper())
    """
    assert run_script(tmp_path, ENVIRONMENT + script) == "True True 3\n"


def test_a_class_that_came_half_is_none(monkeypatch):
    """Of an error in the middle, or an interrupt, nothing stays."""

    class Half:
        level = 1

    data = dumps_for_worker(Half())
    monkeypatch.delitem(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID, _number(Half))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cloudpickle, "_class_setstate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loads(data)
    whole = loads(data)
    assert whole.level == 1
    assert type(loads(data)) is type(whole)
    monkeypatch.undo()


def test_errors_of_local_classes_are_checked_and_come_back_as_they_are():
    class MineError(Exception):
        def told(self):
            return "mine"

    before = dict(vars(MineError))
    error = unpack_error(pack_error(MineError(3)))
    assert type(error) is MineError
    assert error.args == (3,)
    assert {name: vars(MineError)[name] for name in before} == before


def _number(kind):
    return cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[kind]
