"""The package seen from outside: its names, the cost of its import, its layers, its README."""

from __future__ import annotations

import ast
import os
import pickle
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import xuance_envs
from xuance_envs import compat, errors, multi_agent

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "xuance_envs"

NEEDS = {
    "MultiAgentRolloutCollector": "torch",
    "RayRolloutCollector": "torch",
    "RemoteVecEnv": "msgpack",
    "RolloutCollector": "torch",
    "StudentGymEnvVectorized": "msgpack",
    "SyncVecEnv": "torch",
    "create_student_gym_env_vectorized": "msgpack",
}
"""The names that need a library which only an extra brings."""

REFERENCE = runpy.run_path(str(ROOT / "docs" / "public_names.py"))
LISTED = {
    name.removeprefix("xuance_envs.").removeprefix("errors.") for name in REFERENCE["definitions"]()
}
PUBLIC_NAMES = {name for name in LISTED if "." not in name} - {"errors", "measure", "report"}
PUBLIC_NAMES |= {"MultiAgentEnv", "RayVecEnv"}  # aliases
"""The names that the reference lists: ``__init__.pyi`` must have these and no others."""

# From the bottom up: a module imports only from lower layers and from its own package.
LAYERS = [
    {"_override", "_version", "env_layers", "errors", "event_loops", "extras", "lazy_exports"},
    {"_deprecated"},
    {"state"},
    {"engine"},
    {"vector_envs"},
    {"measure"},
    {"tuning_estimates"},
    {"tuning"},
    {"multi_agent"},
    {"compat", "gym", "rollout", "transforms"},
    {"report"},
    {"demo", "making", "remote"},
    {"doctor", "file_commands", "measuring_commands"},
    {"__main__"},
]
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}

# The same within the engine, for its subpackages and modules.
ENGINE_LAYERS = [
    {"by_value", "cpus", "serialization", "stream", "system"},
    {"data"},
    {"group"},
    {"action_masks", "driver", "info_collector", "replay_log", "polling"},
    {"backend", "ledger", "pickled_commands", "recovery"},
    {"process", "restarts", "saving", "thread"},
    {"ray"},
    {"groups"},
]
TIED = ENGINE_LAYERS[0] | ENGINE_LAYERS[3] | ENGINE_LAYERS[4]
"""Modules of the engine that may import others of their layer, without cycles."""

# The same within the HTTP server and its clients, and within the server.
REMOTE_LAYERS = [{"wire"}, {"client", "server"}, {"cli", "remote_vec_env", "settings"}]
SERVER_LAYERS = [
    {"access"},
    {"settings"},
    {"limits", "monitoring"},
    {"http"},
    {"hosting"},
    {"routes"},
    {"server"},
]
INNER_LAYERS = {
    "xuance_envs.engine": ENGINE_LAYERS,
    "xuance_envs.remote": REMOTE_LAYERS,
    "xuance_envs.remote.server": SERVER_LAYERS,
}

MANY_ENVIRONMENTS = {"xuance_envs.gym.gym_vec_env"}


def run_python(*arguments: str, cwd: Path = ROOT) -> str:
    """Run another interpreter in which every warning is an error; what it prints."""
    result = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported_packages(statement: str) -> set[str]:
    """The top-level packages a statement leaves in a fresh interpreter, standard ones aside."""
    loaded = run_python("-c", f"import sys; {statement}; print(*sys.modules)").split()
    return {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)


# --- names --------------------------------------------------------------------------------------


def test_the_public_names_are_these() -> None:
    assert set(xuance_envs.__all__) == PUBLIC_NAMES - set(NEEDS) | {"__version__"}
    assert set(dir(xuance_envs)) >= PUBLIC_NAMES
    assert set(compat.__all__) <= set(dir(compat))


def test_the_names_of_many_agents_can_be_imported_from_their_room_too() -> None:
    stub = (PACKAGE / "__init__.pyi").read_text(encoding="utf-8")
    names = set(re.findall(r"^from xuance_envs\.multi_agent\.\w+ import \(?\s*(\w+)", stub, re.M))
    assert names == set(multi_agent.__all__) <= set(dir(multi_agent))
    for name in names:
        assert getattr(multi_agent, name) is getattr(xuance_envs, name)
    with pytest.raises(AttributeError, match=r"'xuance_envs\.multi_agent' has no attribute"):
        _ = multi_agent.MultiAgentVecEnvs


def test_errors_about_names_let_python_suggest_the_right_one() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = xuance_envs.SubprocVecEnv_Gymm
    assert (caught.value.name, caught.value.obj) == ("SubprocVecEnv_Gymm", xuance_envs)
    with xuance_envs.DummyVecEnv([lambda: xuance_envs.Gym_Env("CartPole-v1")]) as envs:
        assert not {"buf_trunctions", "buf_info", "max_episode_length"} & set(dir(envs))
        assert {"buf_truncations", "buf_infos", "max_episode_steps", "envs"} <= set(dir(envs))
        wrapped = xuance_envs.ClipRewards(envs, -1, 1)
        with pytest.raises(AttributeError) as caught:
            _ = wrapped._rest
    assert (caught.value.name, caught.value.obj) == ("_rest", wrapped)


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_each_public_name_can_be_used(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert getattr(xuance_envs, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'xuance_envs' has no attribute 'Gym_Envs'"):
        _ = xuance_envs.Gym_Envs


# --- what an import loads -----------------------------------------------------------------------


def test_importing_the_package_loads_nothing_else() -> None:
    before = imported_packages("pass")
    assert imported_packages("import xuance_envs") - before == {"xuance_envs"}


@pytest.mark.parametrize("module", ["engine.process.worker", "gym.gym_env"])
def test_workers_and_environments_load_numpy_and_gymnasium_and_nothing_heavier(module: str) -> None:
    allowed = imported_packages("import numpy, gymnasium, cloudpickle")
    assert imported_packages(f"import xuance_envs.{module}") - allowed == {"xuance_envs"}


# --- layers -------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def imports_within_the_package(path: Path) -> Iterator[str]:
    """Every module of the package that a file imports, wherever in the file it does so."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            targets = [resolve(base, alias.name) for alias in node.names]
        else:
            continue
        yield from (target for target in targets if target.partition(".")[0] == "xuance_envs")


def resolve(base: str, name: str) -> str:
    """The module that ``from base import name`` reaches: a submodule, or base itself."""
    candidate = ROOT.joinpath(*base.split("."), name)
    is_module = candidate.is_dir() or candidate.with_suffix(".py").exists()
    return f"{base}.{name}" if is_module else base


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def inner_room_of(package: str, module: str) -> str:
    """Return the subpackage or module of a package that contains a module; "" if none does."""
    inner = module.removeprefix(f"{package}.")
    return "" if inner == module else inner.partition(".")[0]


def is_backend(module: str) -> bool:
    return module.startswith("xuance_envs.vector_envs.") and module.endswith("_vec_env")


def faults_of(importer: str, imported: str) -> Iterator[str]:
    ours, theirs = room_of(importer), room_of(imported)
    if ours != theirs and (theirs not in LAYER_OF or LAYER_OF[theirs] >= LAYER_OF[ours]):
        yield f"{importer} imports {imported}, which is not in a layer below it"
    for package, layers in INNER_LAYERS.items():
        yield from inner_faults_of(package, layers, importer, imported)
    if is_backend(importer) and is_backend(imported) and importer != imported:
        yield f"{importer} imports {imported}: a backend does not import another"
    if ours == "gym" and importer not in MANY_ENVIRONMENTS:
        single = theirs == "gym" and imported not in MANY_ENVIRONMENTS
        converts = imported.endswith(
            (".data.reward_rows", ".data.space_layout")
        )  # values of spaces
        if not (single or converts) and theirs not in ("env_layers", "errors", "extras"):
            yield f"{importer} is about one environment, but imports {imported}"


def inner_faults_of(
    package: str, layers: list[set[str]], importer: str, imported: str
) -> Iterator[str]:
    ours, theirs = inner_room_of(package, importer), inner_room_of(package, imported)
    if not ours or not theirs or ours == theirs:
        return
    layer_of = {room: number for number, rooms in enumerate(layers) for room in rooms}
    above = layer_of[theirs] - layer_of[ours]
    if above > 0 or (above == 0 and not (layers is ENGINE_LAYERS and {ours, theirs} <= TIED)):
        yield f"{importer} imports {imported}, which is not in a layer of {package} below it"


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    imports = {
        module: set(imports_within_the_package(path)) & modules.keys() - {"xuance_envs", module}
        for module, path in modules.items()
    }
    TopologicalSorter(imports).prepare()  # raises an error with the modules of a cycle


@pytest.mark.parametrize("package", INNER_LAYERS)
def test_every_module_of_a_package_has_a_layer(package: str) -> None:
    folder = ROOT.joinpath(*package.split("."))
    rooms = {path.stem for path in folder.iterdir() if path.stem[0] != "_"}
    assert rooms == set().union(*INNER_LAYERS[package])


@pytest.mark.parametrize("room", ["engine", "vector_envs"])
def test_the_design_page_has_every_module_of_a_package(room: str) -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    modules = {path.stem for path in (PACKAGE / room).rglob("*.py") if path.stem[0] != "_"}
    assert {module for module in modules if f"`{module}`" not in page} == set()


def test_no_module_class_or_folder_is_too_large_to_be_walked() -> None:
    paths = list(PACKAGE.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    assert [p for p, text in texts.items() if len(text.splitlines()) > 400] == []
    folders = Counter(path.parent for path in paths if path.stem[0] != "_")
    assert {folder: count for folder, count in folders.items() if count > 20} == {}
    nodes = [node for path in paths for node in nodes_of(path)]
    methods = {node.name: methods_of(node) for node in nodes if isinstance(node, ast.ClassDef)}
    assert {name: count for name, count in methods.items() if count > 28} == {}


def test_the_control_layer_has_smaller_classes() -> None:
    rooms = [PACKAGE / name for name in ("engine", "vector_envs", "compat")]
    nodes = [node for room in rooms for path in room.rglob("*.py") for node in nodes_of(path)]
    methods = {node.name: methods_of(node) for node in nodes if isinstance(node, ast.ClassDef)}
    assert {name: count for name, count in methods.items() if count > 25} == {}


PRIVATE_NAMES = {
    # There is no public way to what they are, which is said where each is used.
    "_DYNAMIC_CLASS_TRACKER_BY_ID",  # cloudpickle
    "_bit_generator",  # numpy.random.RandomState
    "_children",  # multiprocessing
    "_elapsed_steps",  # gymnasium.wrappers.TimeLimit
    "_find_spec",  # gymnasium
    "_frameskip",  # ale_py.AtariEnv
    "_lookup_class_or_track",  # cloudpickle
    "_max_episode_steps",  # gymnasium.wrappers.TimeLimit
    "_np_random",  # gymnasium.Env and its spaces
    "_np_random_seed",  # gymnasium.Env
}
DOCUMENTED = {"_b_base_", "_current_frames", "_exit", "_fields", "_objects", "_replace"}
"""Names that are public for all their underscores: of ``sys``, ``os``, ctypes, named tuples."""


def test_no_other_private_names_of_other_objects_are_used() -> None:
    modules = [parsed(path) for path in PACKAGE.rglob("*.py")]
    assert {name for module in modules for name in foreign_private_names(module)} == PRIVATE_NAMES
    assert len(PRIVATE_NAMES) <= 10


def foreign_private_names(module: ast.Module) -> set[str]:
    """The private names that a module uses of objects of other classes, or imports."""
    used: set[str] = set()
    for node in module.body:
        owners = {"self", "cls", "super", getattr(node, "name", "")}
        attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
        own = {each.attr for each in attributes if owner_of(each) in owners}
        own |= {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
        used |= {each.attr for each in attributes} - own
        imports = [each for each in ast.walk(node) if isinstance(each, ast.ImportFrom)]
        used |= {alias.name for each in imports for alias in each.names}
    return {name for name in used if re.match(r"_(?!_)", name)} - DOCUMENTED


def owner_of(attribute: ast.Attribute) -> str | None:
    value = attribute.value
    value = value.func if isinstance(value, ast.Call) else value
    return value.id if isinstance(value, ast.Name) else None


MAY_LACK = {
    *("TCP_NOTSENT_LOWAT",),  # a system, of socket
    *("set_",),  # a library's setting of its threads, in library_threads
    *("__get__", "copy_to", "name"),  # an environment: its attributes, and its observations
}


def test_hasattr_asks_for_nothing_but_what_a_system_or_an_environment_may_lack() -> None:
    paths = [path for room in ("engine", "vector_envs") for path in (PACKAGE / room).rglob("*.py")]
    nodes = [node for path in paths for node in nodes_of(path)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = [call for call in calls if isinstance(call.func, ast.Name)]
    asked = [call.args[1] for call in names if call.func.id == "hasattr"]
    assert {ast.unparse(name).strip("'") for name in asked} == MAY_LACK


SYSTEM = PACKAGE / "engine" / "system"

ASKS_FOR_A_SYSTEM = re.compile(
    r"sys\.platform|\bos\.name\b|platform\.system\(|\b(has|get)attr\((os|select|signal|mmap)\b"
    r"|\b(import|from) (fcntl|grp|msvcrt|pwd|resource|termios|winreg)\b|[\"'](/proc|/sys|/dev)/"
)


def test_only_one_folder_asks_for_the_system() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if SYSTEM not in path.parents]
    assert [path for path in paths if ASKS_FOR_A_SYSTEM.search(path.read_text("utf-8"))] == []
    choosing = [path.name for path in SYSTEM.glob("*.py") if "if sys.platform" in path.read_text()]
    assert choosing == ["current.py"]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ('if sys.platform == "win32":', True),
        ('hasattr(os, "fork")', True),
        ("    import resource", True),
        ("from resources import x", False),
        ('open("/proc/self/stat")', True),
        ("system.platform_calls", False),
    ],
)
def test_the_check_of_questions_for_the_system_finds_them(text: str, asks: bool) -> None:
    assert bool(ASKS_FOR_A_SYSTEM.search(text)) == asks


def test_every_system_has_the_same_calls() -> None:
    from xuance_envs.engine.system import linux, macos, windows

    paths = [path for path in PACKAGE.rglob("*.py") if path != SYSTEM / "current.py"]
    text = "".join(path.read_text("utf-8") for path in paths)
    used = set(re.findall(r"(?<![\w.])system\.(\w+)", text)) - {"current"}
    assert len(used) > 30
    lacking = [(m.__name__, n) for m in (linux, macos, windows) for n in used if not hasattr(m, n)]
    assert lacking == []


def methods_of(definition: ast.ClassDef) -> int:
    """How many methods a class defines, but for those that Python calls itself."""
    names = {node.name for node in definition.body if isinstance(node, ast.FunctionDef)}
    return len([name for name in names if not name.startswith("__")])


def test_a_module_imports_only_from_lower_layers() -> None:
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    del modules["xuance_envs"]  # it exports names of every layer; a test above checks what it loads
    homeless = [module for module in modules if room_of(module) not in LAYER_OF]
    assert not homeless, f"assign these to a layer: {homeless}"
    assert [
        fault
        for importer, path in sorted(modules.items())
        for imported in imports_within_the_package(path)
        for fault in faults_of(importer, imported)
    ] == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("xuance_envs.errors", "xuance_envs.engine.data.step_infos"),
        ("xuance_envs.engine.process.worker", "xuance_envs"),
        ("xuance_envs.engine.process.worker", "xuance_envs.vector_envs.vector_env"),
        ("xuance_envs.rollout.collector", "xuance_envs.gym.gym_env"),
        ("xuance_envs.vector_envs.subproc_vec_env", "xuance_envs.vector_envs.dummy_vec_env"),
        ("xuance_envs.engine.data.space_rows", "xuance_envs.engine.group.outcome"),
        ("xuance_envs.engine.process.worker", "xuance_envs.engine.ray.actor"),
        ("xuance_envs.remote.wire.formats", "xuance_envs.remote.client.transport"),
        ("xuance_envs.remote.client.api_client", "xuance_envs.remote.server.settings"),
        ("xuance_envs.remote.server.server", "xuance_envs.remote.client.api_client"),
        ("xuance_envs.remote.server.access", "xuance_envs.remote.server.limits"),
        ("xuance_envs.remote.server.limits", "xuance_envs.remote.server.monitoring"),
        ("xuance_envs.gym.gym_env", "xuance_envs.engine.data.step_infos"),
        ("xuance_envs.gym.gym_env", "xuance_envs.gym.gym_vec_env"),
    ],
)
def test_the_check_of_the_layers_finds_faults(importer: str, imported: str) -> None:
    assert list(faults_of(importer, imported))


# --- errors -------------------------------------------------------------------------------------

ERRORS = [
    errors.VecEnvError("text"),
    errors.AlreadySteppingError("text"),
    errors.NotResetError("text"),
    errors.NotSteppingError("text"),
    errors.ClosedVecEnvError("text"),
    errors.WrongProcessError("text"),
    errors.EnvError(3, "step", "ValueError: too far", "Traceback ..."),
    errors.StateError(3, "save_state", "Pump.handle: a Handle cannot be saved"),
    errors.StateMismatchError(
        3, "load_state", "another id", "", "id", "CartPole-v1", "CartPole-v0"
    ),
    errors.WorkerDiedError([0, 1], 4711, -9, "step", "the end of its output"),
    errors.WorkerTimeoutError([2], 4712, 1.5, "reset", "waited in vain"),
    errors.RemoteError("text", "http://127.0.0.1:8001", 500),
    errors.RemoteAuthenticationError("text", "http://127.0.0.1:8001", 401),
    errors.RemoteForbiddenError("text", "http://127.0.0.1:8001", 403),
    errors.RemoteNotFoundError("text", "http://127.0.0.1:8001", 404),
    errors.RemoteConflictError("text", "http://127.0.0.1:8001", 409),
    errors.RemoteTooLargeError("text", "http://127.0.0.1:8001", 413),
    errors.RemoteRequestError("text", "http://127.0.0.1:8001", 422),
    errors.RemoteLimitError("text", "http://127.0.0.1:8001", 429),
    errors.RemoteVersionError("text", "http://127.0.0.1:8001"),
    errors.RemoteUnreachableError("text", "http://127.0.0.1:8001"),
]


def test_every_error_is_tried_below() -> None:
    public = {getattr(errors, name) for name in errors.__all__}
    assert {type(error) for error in ERRORS} == public
    assert all(issubclass(kind, errors.VecEnvError) for kind in public)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: errors.VecEnvError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


def test_what_is_noted_on_an_error_survives_pickling() -> None:
    error = errors.WorkerTimeoutError(env_indices=[2, 3], pid=4712, timeout=1.5, command="step")
    error.restarted = True
    copy = pickle.loads(pickle.dumps(error))
    assert copy.restarted
    assert str(copy) == str(error)


# --- floors of requirements ---------------------------------------------------------------------


def test_every_requirement_states_one() -> None:
    pytest.importorskip("setuptools")
    pins = run_python(".ci/floors.py").splitlines()
    assert {"gymnasium==1.1", 'numpy==1.26; python_version >= "3.11"', "gym==0.26.2"} <= set(pins)
    assert [pin for pin in pins if not re.fullmatch(r"[\w-]+==[\d.]+(; .+)?", pin)] == []


# --- the documentation --------------------------------------------------------------------------


def test_every_module_is_in_the_reference_or_listed_as_internal() -> None:
    modules = {module_name(path) for path in PACKAGE.rglob("*.py") if path.stem[0] != "_"}
    modules.add("xuance_envs.errors")  # whose modules are nobody's business
    text = (ROOT / "docs" / "modules.rst").read_text(encoding="utf-8")
    internal = re.findall(r"^   (xuance_envs\.\S+)$", text, re.MULTILINE)
    public = REFERENCE["public_modules"]()
    assert public | set(internal) == modules
    assert len(public) + len(internal) == len(modules), "each on one of the two, once"


def test_the_reference_has_no_page_of_an_internal_module() -> None:
    modules = (ROOT / "docs" / "modules.rst").read_text(encoding="utf-8")
    assert modules.startswith(":orphan:"), "in no table of contents, so not in the sidebar"
    assert ":toctree:" not in modules
    assert [name for name in REFERENCE["public_modules"]() if ".engine." in name] == []


# --- the README ---------------------------------------------------------------------------------


def test_the_quick_start_runs_as_printed(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("<!-- quick start: begin -->")[2]
    match = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert match is not None
    script = match.group(1)
    assert len(script.splitlines()) <= 15
    (tmp_path / "quick_start.py").write_text(script, encoding="utf-8")
    printed = run_python("quick_start.py", cwd=tmp_path)
    assert re.fullmatch(r"\d+ episodes, mean score \d+\.\d\n", printed)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_into_the_repository_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []
