"""Which tests hold for which of the troubles that users of other libraries report.

What has an issue of its own (the speed of cheap environments, LazyFrames, Atari) is tested there.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

CONTRACT = "vector_envs/test_contract_"
PROCESSES = "vector_envs/test_processes_"

ROWS = {
    "a worker crashes or is killed: hang, or a bare EOFError": [
        "faults/test_deaths.py::test_the_death_of_one_is_noticed_while_others_are_waited_for",
        "faults/test_deaths.py::test_a_worker_killed_at_any_moment_of_a_step_is_noticed",
        "faults/test_deaths.py::test_a_worker_killed_at_any_moment_of_its_start_is_noticed",
        "faults/test_deaths.py::test_a_worker_that_ends_is_an_error_that_says_where_it_was",
        "faults/test_deaths.py::test_a_crash_in_native_code_is_told_with_the_last_words_and_the_stack",
    ],
    "an exception without traceback or environment index": [
        f"{CONTRACT}errors.py::test_the_error_has_the_index_the_command_the_traceback_and_the_cause",
        f"{CONTRACT}errors.py::test_an_exception_that_cannot_be_sent_is_reported_all_the_same",
        f"{CONTRACT}errors.py::test_an_exception_in_the_constructor_names_the_environment",
        "faults/test_surroundings.py::test_an_exception_beyond_exception_is_an_error_that_closes",
    ],
    "last observation lost at auto-reset": [
        f"{CONTRACT}step.py::test_at_an_end_the_observation_is_the_last_one_of_the_finished_episode",
        f"{CONTRACT}step.py::test_termination_and_truncation_are_told_apart",
    ],
    "hang or error in close": [
        f"{CONTRACT}states.py::test_closing_closes_every_environment_once_and_leaves_no_process",
        f"{CONTRACT}errors.py::test_environments_made_before_one_failed_are_closed",
        f"{PROCESSES}end.py::test_close_does_not_wait_for_an_environment_that_hangs",
        f"{PROCESSES}end.py::test_what_is_forgotten_is_closed",
        f"{PROCESSES}end.py::test_a_program_that_closes_nothing_ends_with_its_workers",
        "faults/test_deaths.py::test_no_fault_of_a_close_gets_out_of_it",
        "faults/test_signals.py::test_a_stopped_worker_does_not_keep_close_waiting_for_ever",
    ],
    "Ctrl-C prints many tracebacks and leaves orphans": [
        "faults/test_signals.py::test_ctrl_c_ends_all_with_one_traceback",
        "faults/test_signals.py::test_hammering_ctrl_c_ends_all_too",
        "faults/test_signals.py::test_workers_do_not_outlive_a_caller_that_is_ended",
        "faults/test_signals.py::test_ctrl_c_at_any_moment_of_a_start_leaves_nothing",
        f"{PROCESSES}interrupts.py::test_no_interrupt_at_any_moment_loses_or_repeats_a_step",
        "faults/test_restarts.py::test_an_interrupted_restart_goes_on",
    ],
    "missing main guard, lambdas": [
        f"{PROCESSES}start.py::test_a_script_without_a_main_guard_keeps_its_imports_to_itself",
        f"{PROCESSES}start.py::test_each_start_method_works_with_lambdas_and_local_state",
    ],
    "fork deadlocks with threads or CUDA": [
        f"{PROCESSES}start.py::test_fork_is_warned_about_where_threads_run",
        f"{PROCESSES}forks.py::test_threads_may_make_and_close_them_at_the_same_time",
        "engine/test_library_threads.py::test_a_worker_is_forked_beside_the_threads_of_opencv_and_can_use_it",
        "engine/test_library_threads.py::test_they_are_warned_about_and_the_default_does_without_a_fork",
    ],
    "one process per environment does not scale": [
        f"{PROCESSES}shares.py::test_environments_are_split_evenly",
        f"{CONTRACT}trajectories.py::test_no_split_changes_a_trajectory",
    ],
    "one slow environment stalls all": [
        f"{CONTRACT}first_ready.py::test_one_slow_environment_delays_no_other",
    ],
    "threads of numeric libraries times workers": [
        f"{PROCESSES}start.py::test_workers_do_not_see_mpi_and_have_one_thread",
        f"{PROCESSES}start.py::test_the_number_of_threads_in_workers_can_be_chosen",
        "faults/test_surroundings.py::test_a_library_imported_late_has_as_few_threads_as_one_imported_early",
    ],
    "the same random stream in several workers": [
        f"{PROCESSES}start.py::test_global_generators_differ_between_workers_and_the_callers_is_not_touched",
        f"{CONTRACT}trajectories.py::test_environments_not_seeded_differ",
        "faults/test_restarts.py::test_seeds_are_derived_anew_and_alike",
    ],
    "info dicts: format and cost": [
        f"{CONTRACT}infos.py::test_an_ordinary_step_pickles_and_copies_nothing",
    ],
    "nested or variable-shaped observations": [
        f"{CONTRACT}spaces.py::test_what_environments_show_arrives_as_it_is",
        "faults/test_restarts.py::test_the_last_known_observation_is_known_for_every_space",
    ],
    "dtype lost": [
        "vector_envs/test_broken_envs.py::test_an_observation_that_does_not_fit_its_space_fails_the_step",
        "vector_envs/test_broken_envs.py::test_an_observation_that_does_not_fit_its_space_fails_the_reset",
        "vector_envs/test_broken_envs.py::test_anything_but_five_good_values_fails_the_step",
        "vector_envs/test_broken_envs.py::test_anything_but_two_good_values_fails_the_reset",
    ],
    "a wrong action count hangs": [
        f"{CONTRACT}actions.py::test_wrong_actions_are_refused_with_expected_and_got",
    ],
    "set_attr sets the wrapper, a failed call kills the worker": [
        f"{CONTRACT}attributes.py::test_set_attr_sets_what_the_environment_itself_uses",
        f"{CONTRACT}errors.py::test_after_an_exception_in_anything_else_it_is_usable_as_before",
        f"{CONTRACT}attributes.py::test_after_an_answer_that_cannot_be_sent_it_is_usable_as_before",
    ],
    "descriptors or shared memory run out": [
        "vector_envs/test_long.py::test_nothing_is_left_behind_by_200_of_them",
        "vector_envs/test_long.py::test_nothing_is_left_behind_by_100_restarts",
        "faults/test_limits.py::test_too_little_shared_memory_is_an_error_that_says_how_much_is_needed",
        "faults/test_limits.py::test_too_few_descriptors_are_an_error_wherever_they_run_out",
        "faults/test_limits.py::test_an_environment_that_takes_memory_without_end_is_an_error",
    ],
    "workers leak memory": [
        "vector_envs/test_long.py::test_memory_stays_as_it_is_over_a_million_steps",
    ],
    "slow start": [
        f"{PROCESSES}start.py::test_a_worker_that_takes_too_long_is_a_timeout",
        "faults/test_deaths.py::test_a_worker_that_hangs_while_it_starts_is_an_error_too",
        "faults/test_deaths.py::test_start_timeout_is_another_than_step_timeout",
    ],
    "an environment hangs for ever": [
        "faults/test_deaths.py::test_a_worker_that_hangs_is_an_error_that_says_where_it_was",
        "faults/test_deaths.py::test_an_answer_longer_than_the_pipe_may_be_taken_late",
    ],
    "a crash ends a week of training": [
        "faults/test_restarts.py::test_a_step_that_loses_a_worker_truncates_its_episodes",
        "faults/test_restarts.py::test_the_others_never_know",
        "faults/test_restarts.py::test_there_may_be_so_many_restarts_and_no_more",
        "faults/test_soak.py::test_killing_a_worker_now_and_then_loses_no_step",
        "faults/test_soak.py::test_killing_a_worker_every_second_for_minutes_loses_no_step",
    ],
    "render one environment only": [
        f"{CONTRACT}attributes.py::test_render_goes_by_env_ids",
    ],
}


@pytest.mark.parametrize("row", ROWS)
def test_every_trouble_has_its_tests(row):
    for test in ROWS[row]:
        file, name = test.split("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert functions.count(name) == 1, test
