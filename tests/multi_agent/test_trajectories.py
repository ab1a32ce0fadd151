"""Every backend does what a bare loop does: agents that die, come late, and end mixed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from agents_envs import ALL_END, FOREVER, MIXED, Crowd, Herd
from bare_agents import assert_like_bare_loops

CASES = {
    "all alike": {},
    "one agent": {"plays": {"lone": (1, FOREVER)}},
    "all end": {"plays": ALL_END},
    "mixed ends": {"plays": MIXED},
    "mixed, of two kinds": {"plays": MIXED, "kinds": 2},
    "of three kinds": {"plays": MIXED, "kinds": 3},
    "masks in infos": {"plays": MIXED, "masks": "info"},
    "masks in infos, of two kinds": {"plays": MIXED, "masks": "info", "kinds": 2},
    "masks in observations": {"plays": MIXED, "masks": "observation"},
    "images": {"plays": MIXED, "images": True},
    "images with masks": {"plays": MIXED, "images": True, "masks": "observation", "kinds": 2},
    "infos of nothing": {"plays": MIXED, "numbers": False},
    "ids that are numbers": {"plays": {3: (1, 2), 1: (1, FOREVER)}},
}


@pytest.mark.everywhere("mixed, of two kinds", "masks in infos", "images")
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_steps_are_those_of_bare_loops(make, options):
    env_fns = [partial(Herd, **options, length=length) for length in (7, 5, 6, 7)]
    assert_like_bare_loops(make(env_fns), env_fns, steps=20)


@pytest.mark.everywhere
@pytest.mark.parametrize("options", [{}, {"kinds": 2, "masks": "info"}, {"masks": "observation"}])
def test_agents_may_come_and_go_at_random(make, options):
    env_fns = [partial(Crowd, plays=MIXED, **options)] * 4
    assert_like_bare_loops(make(env_fns), env_fns, steps=60)


@pytest.mark.everywhere
@pytest.mark.parametrize("make_many", [partial(Herd, plays=MIXED, kinds=2, masks="info")])
def test_views_are_those_of_bare_loops(make, make_many):
    env_fns = [make_many] * 4
    assert_like_bare_loops(make(env_fns, copy=False), env_fns, steps=20)


@pytest.mark.parametrize(
    "name",
    ["simple_spread_v3", "simple_tag_v3", "simple_speaker_listener_v4", "simple_world_comm_v3"],
)
def test_the_particle_worlds_are_those_of_bare_loops(make, name):
    mpe2 = pytest.importorskip("mpe2")
    module = pytest.importorskip(f"mpe2.{name}")
    assert mpe2
    make_one = partial(module.parallel_env, max_cycles=8)
    assert_like_bare_loops(make([make_one] * 3), [make_one] * 3, steps=20)


@pytest.mark.everywhere("False")
@pytest.mark.parametrize("copy", [True, False])
def test_what_is_returned_stays_as_it_was(make, copy):
    envs = make([partial(Herd, plays=MIXED)] * 3, copy=copy)
    envs.reset(seed=0)
    held = []
    for _ in range(9):
        step = envs.step(np.ones((3, 4), int))
        held.append((step, [np.copy(part) for part in step[:8]], list(step.infos)))
    for step, parts, infos in held:
        assert list(step.infos) == infos
        if copy:
            for now, then in zip(step[:8], parts, strict=True):
                np.testing.assert_array_equal(now, then)
                assert now.flags.writeable


def test_what_is_written_into_results_changes_nothing_else(make):
    envs, plain = (make([partial(Herd, plays=MIXED, length=5)] * 3) for _ in range(2))
    envs.reset(seed=0), plain.reset(seed=0)
    for _ in range(7):
        step, same = envs.step(np.ones((3, 4), int)), plain.step(np.ones((3, 4), int))
        first, same_first = step.first or step, same.first or same
        mask, infos, starts = plain.agent_mask, list(same.infos), list(same_first.infos)
        np.testing.assert_array_equal(step.env_ids, same.env_ids)
        for each in (step, first):
            each.env_ids[:] = each.env_ids[::-1].copy()
            each.alive[:] = False
        step.acted[:, 1:] = False
        np.testing.assert_array_equal(envs.agent_mask, mask)
        assert list(step.infos) == infos
        assert list(first.infos) == starts


def test_infos_of_views_show_their_own_step_when_looked_at_later(make):
    envs = make([partial(Herd, plays=MIXED)] * 2, copy=False)
    envs.reset(seed=0)
    third = [envs.step(np.ones((2, 4), int)) for _ in range(3)][2].infos
    for _ in range(3):
        envs.step(np.ones((2, 4), int))
    assert list(third[1]) == ["wolf_0", "sheep_0", "sheep_1", "sheep_2"]


@pytest.mark.everywhere
def test_environments_have_first_observations_of_their_own(make):
    envs = make([Herd] * 6, env_seed=3)
    seen = [envs.reset().obs, envs.reset(seed=20).obs, envs.reset().obs]
    rows = {row.tobytes() for obs in seen for env in obs for row in env}
    assert len(rows) == 3 * 6 * 3
