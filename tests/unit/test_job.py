"""Job specifications: what is understood, what is refused, and what is kept secret."""

import re
from pathlib import Path
from typing import Any

import pytest

from geminid.executionplan import BUILT_IN_PLANS, ExecutionPlan
from geminid.fields import InvalidInput
from geminid.gputypes import GpuPreference
from geminid.job import Adaptivity, JobSpec, ScalingRule
from geminid.units import MAX_BATCH_SIZE, MAX_SAMPLES

DOCS = Path(__file__).parents[2] / "docs"


def job(**fields: Any) -> JobSpec:
    return JobSpec.from_dict({"name": "j", "command": ["python", "train.py"], **fields})


def problems(**fields: Any) -> list[str]:
    with pytest.raises(InvalidInput) as error:
        job(**fields)
    return str(error.value).splitlines()


def test_a_name_and_a_command_make_a_job() -> None:
    spec = job()
    assert spec.command == ("python", "train.py")
    assert (spec.min_slots, spec.max_slots, spec.queue) == (1, None, "default")
    assert spec.execution_plans == (BUILT_IN_PLANS["dp"],)


def test_a_rigid_job_has_an_exact_size() -> None:
    spec = job(slots=4)
    assert (spec.min_slots, spec.max_slots, spec.adaptivity) == (4, 4, Adaptivity.RIGID)
    assert spec.to_dict()["slots"] == 4
    assert "min_slots" not in spec.to_dict()


def test_what_a_policy_may_change_follows_from_what_is_allowed() -> None:
    assert job(initial_batch_size=32, max_batch_size=64).adaptivity is Adaptivity.ADAPTIVE
    assert job(initial_batch_size=32).adaptivity is Adaptivity.FIXED_BATCH
    assert job(initial_batch_size=32, max_batch_size=32).adaptivity is Adaptivity.FIXED_BATCH


def test_the_work_is_epochs_times_samples() -> None:
    assert job(dataset_samples=50_000, epochs=2.5).work_samples == 125_000
    assert job().work_samples is None


def test_durations_are_written_with_their_units() -> None:
    spec = job(deadline="2h", gpu_time_budget="1d", min_runtime="5m", checkpoint_interval=90)
    assert (spec.deadline_s, spec.budget_gpu_s) == (7200.0, 86_400.0)
    assert (spec.min_runtime_s, spec.checkpoint_interval_s) == (300.0, 90.0)
    assert spec.to_dict()["checkpoint_interval"] == "1m30s"


def test_gpu_types_are_a_list_a_choice_or_an_order() -> None:
    assert job().gpu_types.allows("anything")
    assert job(gpu_types=["t4", "v100"]).gpu_types == job(gpu_types={"any_of": ["t4", "v100"]}).gpu_types
    ordered = job(gpu_types={"ordered": ["h100", "a100-40gb"]}).gpu_types
    assert ordered == GpuPreference(names=("h100", "a100-40gb"), ordered=True)
    assert [ordered.rank(name) for name in ordered.names] == [0, 1]
    assert not ordered.allows("t4")


@pytest.mark.parametrize(
    "gpu_types",
    [[], {}, "t4", {"any_of": ["t4"], "ordered": ["t4"]}, {"best": ["t4"]}, ["t4", "t4"], ["a b"], [1]],
)
def test_gpu_types_that_say_nothing_clear_are_refused(gpu_types: object) -> None:
    assert problems(gpu_types=gpu_types)[0].startswith("gpu_types")


def test_a_job_that_splits_its_model_is_at_least_one_replica() -> None:
    assert job(slots_per_replica=4).min_slots == 4


# --- Commands and secrets ---


def test_a_command_in_one_text_is_refused_because_there_is_no_shell() -> None:
    assert problems(command="python train.py --lr '0.1'") == [
        "command is \"python train.py --lr '0.1'\", but must be a list of words such as "
        "['python', 'train.py', '--lr', '0.1']; there is no shell to split it."
    ]


@pytest.mark.parametrize("command", [[], [""], "", "it's", ["python", 3], ["a\x00b"], {}, None])
def test_what_is_not_a_command_is_refused(command: object) -> None:
    assert all(problem.startswith("command") for problem in problems(command=command))


def test_arguments_are_taken_as_they_are() -> None:
    words = ["sh", "-c", "echo $HOME; rm -rf *", "line\nline", "größe", "x" * 100_000]
    assert job(command=words).command == tuple(words)


def test_the_constructor_does_not_take_a_text_for_a_list_of_words() -> None:
    with pytest.raises(InvalidInput, match="must be a list of words"):
        JobSpec(name="j", command="ls")  # type: ignore[arg-type]


def test_the_environment_never_shows_its_values() -> None:
    spec = job(env={"TOKEN": "hunter2"})
    assert spec.env == (("TOKEN", "hunter2"),)
    assert "hunter2" not in repr(spec)
    assert spec.redacted().to_dict()["env"] == {"TOKEN": "***"}


@pytest.mark.parametrize(
    "env",
    ["TOKEN=hunter2", ["TOKEN=hunter2"], {"1TOKEN": "hunter2"}, {"T": "hunter2\x00"}, {"T": ["hunter2"]}],
)
def test_mistakes_in_the_environment_do_not_reveal_it(env: object) -> None:
    assert "hunter2" not in "".join(problems(env=env))


def test_an_unknown_field_does_not_reveal_its_value() -> None:
    (problem,) = problems(secrets={"TOKEN": "hunter2"})
    assert problem.startswith("secrets is not a known field; the fields here are after, array, ")
    assert "hunter2" not in problem


def test_a_number_in_the_environment_must_be_in_quotes() -> None:
    assert problems(env={"THREADS": 4}) == ["env.THREADS must be text; write it in quotes."]


def test_the_working_directory_does_not_go_up() -> None:
    assert problems(working_dir="runs/../../etc") == ["working_dir is 'runs/../../etc', but must not go up with '..'."]
    assert job(working_dir="/data/a..b").working_dir == "/data/a..b"


# --- Rules ---


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"slots": 4, "max_slots": 8},
            "slots is 4, but means exactly that many; it goes with neither min_slots nor ",
        ),
        ({"min_slots": 4, "max_slots": 2}, "max_slots is 2, but must be at least min_slots, which is 4."),
        ({"max_batch_size": 8}, "max_batch_size is 8, but needs initial_batch_size as well."),
        (
            {"initial_batch_size": 16, "max_batch_size": 8},
            "max_batch_size is 8, but must be at least initial_batch_size, which is 16.",
        ),
        (
            {"min_per_slot_batch": 8, "max_per_slot_batch": 4},
            "max_per_slot_batch is 4, but must be at least min_per_slot_batch, which is 8.",
        ),
        (
            {"min_slots": 4, "initial_batch_size": 16, "max_batch_size": 24, "min_per_slot_batch": 8},
            "min_per_slot_batch is 8, but must be at most 6: 4 such batches, as min_slots asks for, must fit "
            "into the largest total batch, 24.",
        ),
        ({"epochs": 3}, "epochs is 3.0, but needs dataset_samples as well."),
        ({"dataset_samples": 3}, "dataset_samples is 3, but needs epochs as well."),
        (
            {"slots_per_replica": 4, "max_slots": 6},
            "max_slots is 6, but must be a multiple of slots_per_replica, which is 4.",
        ),
        (
            {"slots_per_replica": 4, "slots": 2},
            "slots is 2, but must be a multiple of slots_per_replica, ",
        ),
        ({"scaling_rule": "adascal"}, "scaling_rule is 'adascal', but must be one of auto, adascale, "),
        ({"deadline": "soon"}, "deadline is 'soon', but must be a duration such as 90, 90s, 2h30m or 1d"),
        ({"deadline": 0}, "deadline is 0.0, but must be a number, above 0."),
        (
            {"priority": 1001},
            "priority is 1001, but must be a whole number, at least -1000 and at most 1000.",
        ),
        ({"max_retries": -1}, "max_retries is -1, but must be a whole number, at least 0 and at most 2147483648."),
        ({"execution_plans": []}, "execution_plans is an empty list, but must have at least one plan."),
        (
            {"execution_plans": ["dp", "dp"]},
            "execution_plans is 'dp', but must be the name of a single plan.",
        ),
        ({"execution_plans": ["zer"]}, "execution_plans[0] is 'zer', but must be one of dp, dp-gc, zero, "),
        (
            {"max_slots": 4, "execution_plans": [{"name": "tp8", "tensor_parallel": 8}]},
            "execution_plans is 'tp8', but needs 8 slots, and max_slots is 4.",
        ),
        (
            {"slots_per_replica": 2, "execution_plans": [{"name": "tp2", "tensor_parallel": 2}]},
            "execution_plans is 'tp2', but splits the model, as slots_per_replica says the script does ",
        ),
        (
            {"execution_plans": ["dp", {"name": "zero", "pipeline_stages": 2}]},
            "execution_plans[1].name is 'zero', but is the name of a built-in plan with other settings; ",
        ),
        (
            {"execution_plans": [{"name": "o", "offload": True}]},
            "execution_plans[0].offload is true, but needs zero to be true as well.",
        ),
        (
            {"execution_plans": [["dp"]]},
            "execution_plans[0] is a list, but must be a mapping of field names to ",
        ),
    ],
)
def test_a_rule_that_is_broken_is_named_in_one_sentence(fields: dict[str, Any], problem: str) -> None:
    found = problems(**fields)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_every_bad_field_is_reported_at_once() -> None:
    fields = [
        problem.split(" ")[0]
        for problem in problems(
            name="my job!",
            command="ls",
            min_slots="four",
            max_slots=0,
            initial_batch_size=512,
            max_batch_size=128,
            epochs=float("nan"),
            dataset_samples=True,
            priorty=3,
        )
    ]
    assert sorted(fields) == sorted(
        [
            "min_slots",
            "command",
            "dataset_samples",
            "epochs",
            "name",
            "max_slots",
            "max_batch_size",
            "priorty",
        ]
    )


def test_an_invalid_job_cannot_be_constructed() -> None:
    with pytest.raises(InvalidInput) as error:
        JobSpec(name="", command=(), min_slots=8, max_slots=4, deadline_s=-1.0)
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["name", "command", "deadline", "max_slots"]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("scaling_rule", "foo", "scaling_rule is 'foo', but must be a ScalingRule: one of auto, adascale, "),
        ("scaling_rule", None, "scaling_rule is null, but must be a ScalingRule: one of auto, adascale, "),
        ("gpu_types", ["v100"], "gpu_types is a list, but must be of type GpuPreference."),
        ("execution_plans", ["dp"], "execution_plans is a list, but must be a tuple."),
        ("execution_plans", ("dp",), "execution_plans[0] is 'dp', but must be of type ExecutionPlan."),
        ("execution_plans", None, "execution_plans is null, but must be a tuple."),
        ("command", ("", "x"), "command is a list, but must be a list of words that begins with a program to run."),
        ("command", (None,), "command[0] is null, but must be text."),
        ("env", {"A": "secret"}, "env must be a tuple of pairs."),
        ("env", ("A=secret",), "env must be a tuple of pairs."),
        ("env", (("A", "secret", "secret"),), "env must be a tuple of pairs."),
        ("env", ((["secret"], "secret"),), "env.a list must be a name of letters, digits and '_' that "),
        ("env", (("A", "secret"), ("A", "secret")), "env must name each variable once."),
        ("max_batch_size", [], "max_batch_size is an empty list, but must be a whole number, "),
    ],
)
def test_the_constructor_checks_the_type_of_every_field(field: str, value: object, sentence: str) -> None:
    fields: dict[str, Any] = {"name": "j", "command": ("x",), "initial_batch_size": 1, field: value}
    with pytest.raises(InvalidInput) as error:
        JobSpec(**fields)
    assert str(error.value).startswith(sentence)
    assert len(error.value.problems) == 1
    assert "secret" not in str(error.value)


def test_the_constructor_reports_wrong_types_all_at_once_with_broken_rules() -> None:
    wrong: dict[str, Any] = {"gpu_types": ["v100"], "scaling_rule": "foo", "execution_plans": ["dp"], "env": [1]}
    with pytest.raises(InvalidInput) as error:
        JobSpec(name="j", command=("x",), min_slots=8, max_slots=4, **wrong)
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["env", "gpu_types", "scaling_rule", "execution_plans", "max_slots"]


def test_preferences_and_plans_check_the_types_of_their_fields() -> None:
    wrong: Any = ["v100", {}]
    with pytest.raises(InvalidInput, match="any_of is a list, but must be a tuple"):
        GpuPreference(names=wrong)
    with pytest.raises(InvalidInput, match=r"any_of\[1\] is a mapping"):
        GpuPreference(names=tuple(wrong))
    with pytest.raises(InvalidInput) as error:
        ExecutionPlan(name=wrong, zero=wrong, offload=wrong, tensor_parallel=10**5000)
    assert [problem.field for problem in error.value.problems] == ["name", "tensor_parallel", "zero", "offload"]


# --- Limits ---


BATCH_SIZES = ["initial_batch_size", "max_batch_size", "min_per_slot_batch", "max_per_slot_batch"]


@pytest.mark.parametrize("field", BATCH_SIZES)
def test_batch_sizes_have_a_limit(field: str) -> None:
    sizes = {"initial_batch_size": 10**12, "max_batch_size": 10**12, "max_per_slot_batch": 10**12}
    assert job(**sizes, min_per_slot_batch=10**12).max_batch_size == 10**12
    for size in (10**12 + 1, 10**400):
        found = problems(**{**sizes, field: size})
        assert len(found) == 1
        assert found[0].startswith(f"{field} is ")
        assert found[0].endswith("but must be a whole number, at least 1 and at most 1000000000000.")


def test_the_work_has_a_limit_and_is_always_a_finite_number() -> None:
    assert job(dataset_samples=2**53, epochs=1).work_samples == 2**53
    assert job(dataset_samples=1, epochs=2**53).work_samples == 2**53
    limit = "and at most 9007199254740992."
    assert problems(dataset_samples=10**400, epochs=1.5)[0].endswith(limit)
    assert problems(dataset_samples=1, epochs=1e300)[0].endswith(limit)
    assert problems(dataset_samples=10**10, epochs=1e10) == [
        "epochs is 10000000000.0, but must be at most 900719: the work, epochs × dataset_samples, is limited to "
        "9007199254740992."
    ]


def test_the_documentation_tells_the_limits() -> None:
    text = (DOCS / "job-file.md").read_text()
    assert all(f"({limit})" in text for limit in (MAX_BATCH_SIZE, MAX_SAMPLES))


# --- Execution plans ---


def test_plans_are_named_or_written_out() -> None:
    plans = ["zero", {"name": "tp2pp2", "tensor_parallel": 2, "pipeline_stages": 2}]
    spec = job(execution_plans=plans)
    assert spec.plan("zero").zero
    assert spec.plan("tp2pp2") == ExecutionPlan(name="tp2pp2", tensor_parallel=2, pipeline_stages=2)
    assert spec.plan("tp2pp2").slots_per_replica == 4
    assert spec.to_dict()["execution_plans"] == plans


def test_asking_for_a_plan_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="plan is 'zero', but must be one of the plans of this job: dp"):
        job().plan("zero")


# --- The documentation ---


def doc_examples() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (DOCS / "job-file.md").read_text(), re.DOTALL)


def test_the_examples_of_the_documentation_are_valid() -> None:
    assert doc_examples()
    for example in doc_examples():
        spec = JobSpec.from_yaml(example)
        assert JobSpec.from_yaml(spec.to_yaml()) == JobSpec.from_json(spec.to_json()) == spec


def test_the_documentation_explains_every_field_and_every_rule() -> None:
    text = (DOCS / "job-file.md").read_text()
    named = set(re.findall(r"^- `(\w+)`", text, re.MULTILINE))
    hint = problems(unknown_field_x=1)[0]
    known = set(re.findall(r"\w+", hint.split("fields here are ")[1]))
    assert known - named == set()
    assert [rule.value for rule in ScalingRule if f"`{rule.value}`" not in text] == []
    assert [plan for plan in BUILT_IN_PLANS if f"`{plan}`" not in text] == []
