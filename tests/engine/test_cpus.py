"""How many CPUs a process may use: by its affinity, and by its control groups' quota."""

from __future__ import annotations

import os

import pytest

from xuance_envs.engine import cpus
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.engine.system import cgroups
from xuance_envs.engine.system.current import system
from xuance_envs.vector_envs.worker_settings import WorkerSettings


@pytest.fixture
def quota(tmp_path, monkeypatch):
    """Reads the quota from files as the kernel writes them."""
    monkeypatch.setattr(cgroups, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "fs")

    def read(membership, **files):
        (tmp_path / "cgroup").write_text(membership)
        for path, text in files.pop("files", {}).items():
            file = tmp_path / "fs" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return cpus._cgroup_quota()

    return read


@pytest.mark.usefixtures("quota")
def test_without_control_groups_there_is_no_quota():
    assert cpus._cgroup_quota() is None


def test_a_group_without_a_limit_has_no_quota(quota):
    assert quota("0::/a\n", files={"a/cpu.max": "max 100000\n"}) is None


def test_version_2_has_quota_and_period_in_one_file(quota):
    assert quota("0::/a\n", files={"a/cpu.max": "150000 100000\n"}) == 1.5


def test_in_a_container_the_own_group_is_the_root(quota):
    assert quota("0::/\n", files={"cpu.max": "200000 100000\n"}) == 2.0
    assert quota("0::/docker/1234\n", files={"cpu.max": "200000 100000\n"}) == 2.0


def test_the_least_quota_of_all_groups_above_counts(quota):
    files = {
        "a/cpu.max": "100000 100000\n",
        "a/b/cpu.max": "300000 100000\n",
        "a/b/c/cpu.max": "max 100000\n",
        "other/cpu.max": "10000 100000\n",
    }
    assert quota("0::/a/b/c\n", files=files) == 1.0


def test_version_1_has_quota_and_period_in_two_files(quota):
    membership = "4:memory:/m\n3:cpu,cpuacct:/a\n1:name=systemd:/s\n"
    files = {
        "cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
        "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
    }
    assert quota(membership, files=files) == 2.5


def test_version_1_writes_no_limit_as_minus_one(quota):
    files = {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}
    assert quota("3:cpu:/a\n", files=files) is None


def test_a_path_with_colons_is_a_path(quota):
    assert quota("0::/a:b\n", files={"a:b/cpu.max": "50000 100000\n"}) == 0.5


def test_files_that_make_no_sense_are_no_limit(quota):
    assert quota("0::/a\n", files={"a/cpu.max": "\n"}) is None


AFFINITY = {
    "affinity alone": (8, None, 8),
    "a lower quota": (8, 3.0, 3),
    "a higher quota": (2, 3.0, 2),
    "a broken quota is rounded up": (8, 1.5, 2),
    "never less than one": (8, 0.1, 1),
}


@pytest.mark.parametrize(("affinity", "limit", "expected"), AFFINITY.values(), ids=AFFINITY)
def test_the_smaller_of_affinity_and_quota_counts(monkeypatch, affinity, limit, expected):
    monkeypatch.setattr(system, "cpu_affinity", lambda: set(range(affinity)))
    monkeypatch.setattr(cpus, "_cgroup_quota", lambda: limit)
    assert available_cpus() == expected


def test_without_an_affinity_all_cpus_count(monkeypatch):
    monkeypatch.setattr(system, "cpu_affinity", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(cpus, "_cgroup_quota", lambda: None)
    assert available_cpus() == 6


# --- how environments are split among them ------------------------------------------------------

SHARES = {
    "one each": (3, 1, 2, [(0, 1), (1, 2), (2, 3)]),
    "the last is smaller": (5, 2, 2, [(0, 2), (2, 4), (4, 5)]),
    "more than there are": (3, 9, 2, [(0, 3)]),
    "evenly": (6, "auto", 3, [(0, 2), (2, 4), (4, 6)]),
    "as evenly as can be": (7, "auto", 3, [(0, 2), (2, 4), (4, 7)]),
    "more CPUs than environments": (2, "auto", 8, [(0, 1), (1, 2)]),
    "one CPU": (5, "auto", 1, [(0, 5)]),
}


@pytest.mark.parametrize(("envs", "in_series", "count", "expected"), SHARES.values(), ids=SHARES)
def test_environments_are_split_like_this(envs, in_series, count, expected):
    assert WorkerSettings(in_series=in_series).split(envs, count) == expected


def test_every_split_has_every_environment_once():
    for envs in range(1, 20):
        for in_series in [*range(1, 22), "auto"]:
            for count in range(1, 6):
                split = WorkerSettings(in_series=in_series).split(envs, count)
                assert [env for lo, hi in split for env in range(lo, hi)] == list(range(envs))
                sizes = [hi - lo for lo, hi in split]
                if in_series == "auto":
                    assert len(sizes) == min(envs, count)
                    assert max(sizes) - min(sizes) <= 1
                else:
                    assert len(sizes) == -(-envs // in_series)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "all", None, True], ids=repr)
def test_another_in_series_is_refused(wrong):
    with pytest.raises(ValueError, match=rf"in_series: expected .*got {wrong!r}"):
        WorkerSettings(in_series=wrong).split(5, 2)
