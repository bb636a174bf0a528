"""Workloads from files: every format is read, guessed, and refused with sentences that say what would be right."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from geminid.fields import InvalidInput
from geminid.job import Adaptivity
from geminid.sim.application import LossCurve
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads import FORMATS, guess_format, load_workload, write_native
from geminid.sim.workloads import tables as tables_module
from geminid.sim.workloads.native import COLUMNS
from geminid.sim.workloads.tables import TextFile
from operations import count_calls
from requirements import PEERS

DOCS = Path(__file__).parents[2] / "docs" / "workloads.md"

POLLUX = "name,time,application,num_replicas,batch_size\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
GAVEL_CELLS = ["LM (batch size 10)", "python3 main.py 'a", "lm", "--steps", "1", "8601", "2", "1", "-1.000000", "12.5"]


def gavel_line(**changes: str) -> str:
    """A line of ten cells, with some changed by their number: c5 is the steps."""
    cells = list(GAVEL_CELLS)
    for number, cell in changes.items():
        cells[int(number[1:])] = cell
    return "\t".join(cells) + "\n"


class Folder:
    """A folder in which a test writes a file and loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, name: str, content: str | bytes, format: str | None = None) -> Workload:
        path = self.path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_workload(path, format)

    def refusal(self, name: str, content: str | bytes, format: str | None = None) -> list[str]:
        with pytest.raises(InvalidInput) as caught:
            self.load(name, content, format)
        return str(caught.value).splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- What each format means ---


def test_pollux_jobs_are_adaptive_and_ask_for_slots_and_a_batch(folder: Folder) -> None:
    workload = folder.load("workload-1.csv", POLLUX + "bert-0,107.5,bert,6,384\n")
    (job,) = workload.jobs
    assert workload.name == "workload-1"
    assert job == TraceJob(name="bert-0", submit_s=107.5, application="bert", requested_slots=6, requested_batch=384)
    assert job.adaptivity is Adaptivity.ADAPTIVE


def test_sia_categories_become_what_may_be_changed_about_a_job(folder: Folder) -> None:
    rows = "a,0,bert,1,12,adaptive\nb,1,bert,1,12,scale-gpus\nc,2,bert,1,12,rigid\nd,3,bert,1,12,\n"
    workload = folder.load("w.csv", POLLUX.strip() + ",category\n" + rows)
    expected = [Adaptivity.ADAPTIVE, Adaptivity.FIXED_BATCH, Adaptivity.RIGID, Adaptivity.ADAPTIVE]
    assert [job.adaptivity for job in workload.jobs] == expected


def test_a_sia_file_without_categories_means_the_same_as_one_of_pollux(folder: Folder) -> None:
    content = POLLUX + "a,0,bert,1,12\nb,5,ncf,2,256\n"
    assert folder.load("w.csv", content, "sia") == folder.load("w.csv", content, "pollux")


def test_gavel_jobs_are_rigid_and_make_steps(folder: Folder) -> None:
    workload = folder.load("w.trace", gavel_line() + gavel_line(c7="2.5", c8="1.2", c9="0"))
    first, second = workload.jobs
    assert first == TraceJob(
        name="job-1",
        submit_s=0.0,
        application="LM (batch size 10)",
        requested_slots=2,
        steps=8601,
        weight=2.5,
        slo_factor=1.2,
        adaptivity=Adaptivity.RIGID,
    )
    assert (second.name, second.submit_s, second.slo_factor, second.slo_s) == ("job-0", 12.5, None, None)


def test_gavels_old_layout_has_seven_cells(folder: Folder) -> None:
    (job,) = folder.load("w.trace", "LM (batch size 10)\tcd x\t--steps\t1\t500\t219316.000000\t64\n").jobs
    assert (job.steps, job.submit_s, job.requested_slots, job.weight) == (500, 219316.0, 64, 1.0)


def test_shockwaves_jobs_keep_their_first_batch_size_and_a_note_says_so(folder: Folder) -> None:
    def line(regime: str) -> str:
        return "\t".join([*GAVEL_CELLS[:7], regime, "1", "-1.000000", "1418", "55"]) + "\n"

    workload = folder.load("w.trace", line("gns") + line("static") + line("accordion") + line("gns"))
    assert [job.submit_s for job in workload.jobs] == [55.0] * 4
    assert workload.notes == ("Jobs that change their batch size as they go keep the first one: 1 accordion, 2 gns.",)
    assert folder.load("w.trace", line("static")).notes == ()


def test_tiresias_jobs_are_opaque(folder: Folder) -> None:
    (job,) = folder.load("w.csv", TIRESIAS + "7,8,30,133,vgg11,147,23\n").jobs
    expected = TraceJob(name="7", submit_s=30.0, requested_slots=8, duration_s=147.0, adaptivity=Adaptivity.RIGID)
    assert job == expected


def test_philly_times_count_from_the_earliest_job(folder: Folder) -> None:
    rows = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-08 23:59:59.5,10,8,80,6214e9\n"
    early, late = folder.load("w.csv", PHILLY + rows).jobs
    assert (early.name, early.submit_s, early.requested_slots, early.owner) == ("job-1", 0.0, 8, "6214e9")
    assert (late.name, late.submit_s, late.duration_s) == ("job-0", 25315.5, 66.0)


def test_times_with_a_zone_and_without_may_be_mixed(folder: Folder) -> None:
    rows = "2017-10-09T01:00:00+01:00,5,1,5,a\n2017-10-09 00:00:10,5,1,5,a\n"
    assert [job.submit_s for job in folder.load("w.csv", PHILLY + rows).jobs] == [0.0, 10.0]


def test_jobs_that_never_ran_are_left_out_with_a_note(folder: Folder) -> None:
    rows = "2017-10-09 07:00:00,0,1,0,a\n2017-10-09 07:00:05,0.0,1,0,a\n2017-10-09 07:00:10,5,1,5,a\n"
    workload = folder.load("w.csv", PHILLY + rows)
    assert [(job.name, job.submit_s) for job in workload.jobs] == [("job-2", 10.0)]
    assert workload.notes == ("2 jobs of duration 0 were left out.",)


# --- Our own form ---


EVERYTHING = Workload(
    "all",
    (
        TraceJob(name="a", submit_s=0.0, requested_slots=1, application="bert"),
        TraceJob(
            name="b",
            submit_s=0.1 + 0.2,
            requested_slots=64,
            application="Größe, \"quoted\" = 1; '#'",
            requested_batch=2048,
            adaptivity=Adaptivity.FIXED_BATCH,
            weight=1e-7,
            slo_s=86_400.0,
            owner="123",
            queue="prod",
        ),
        TraceJob(name="c", submit_s=7200.0, requested_slots=8, duration_s=1e9 / 3, adaptivity=Adaptivity.RIGID),
        TraceJob(
            name="1e3",
            submit_s=9999.0,
            requested_slots=4,
            application="null",
            steps=10**15,
            slo_factor=1.2,
            adaptivity=Adaptivity.ADAPTIVE,
        ),
    ),
)


@pytest.mark.parametrize("name", ["all.csv", "all.yaml", "all.yml", "all.json", "all.CSV"])
def test_a_native_workload_is_written_and_read_back_without_loss(tmp_path: Path, name: str) -> None:
    write_native(EVERYTHING, tmp_path / name)
    assert load_workload(tmp_path / name) == EVERYTHING
    assert load_workload(tmp_path / name, "native") == EVERYTHING


def test_yaml_keeps_the_name_and_the_notes(tmp_path: Path) -> None:
    workload = Workload("2017: Philly", EVERYTHING.jobs, ("3 jobs of duration 0 were left out.",))
    write_native(workload, tmp_path / "other.yaml")
    assert load_workload(tmp_path / "other.yaml") == workload


def test_only_columns_that_some_job_needs_are_written(tmp_path: Path) -> None:
    write_native(Workload("w", EVERYTHING.jobs[:1]), tmp_path / "w.csv")
    assert (tmp_path / "w.csv").read_bytes() == b"name,submit,slots,application\na,0,1,bert\n"


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Workload("w", (TraceJob(name="a b", submit_s=0.0, requested_slots=0, application=" bert"),))
    for name in ("w.csv", "w.yaml"):
        with pytest.raises(InvalidInput, match="must be a name"):
            write_native(bad, tmp_path / name)
    with pytest.raises(InvalidInput) as caught:
        write_native(EVERYTHING, tmp_path / "w.txt")
    assert str(caught.value) == "path is 'w.txt', but must end in .csv, .yaml, .yml or .json."
    monkeypatch.setattr("geminid.sim.workloads.native.MAX_TEXT_LENGTH", 2**12)
    many = (TraceJob(name=f"a-{i}", submit_s=0.0, requested_slots=1, application="bert") for i in range(120))
    with pytest.raises(InvalidInput, match="too many jobs for YAML"):
        write_native(Workload("w", tuple(many)), tmp_path / "w.yaml")
    assert not list(tmp_path.iterdir())


def test_durations_are_written_as_people_write_them(folder: Folder) -> None:
    (job,) = folder.load("w.csv", "name,submit,slots,duration\na,1h30m,1,2d\n").jobs
    assert (job.submit_s, job.duration_s) == (5400.0, 172_800.0)


def test_an_opaque_job_and_one_with_steps_are_rigid_unless_told_otherwise(folder: Folder) -> None:
    rows = "a,0,1,,60,,\nb,0,1,lm,,500,\nc,0,1,lm,,500,adaptive\nd,0,1,lm,,,\n"
    workload = folder.load("w.csv", "name,submit,slots,application,duration,steps,adaptivity\n" + rows)
    assert [job.adaptivity.value for job in workload.jobs] == ["rigid", "rigid", "adaptive", "adaptive"]


# --- What is accepted ---


def test_unsorted_jobs_are_sorted_and_those_of_the_same_moment_keep_their_order(folder: Folder) -> None:
    workload = folder.load("w.csv", POLLUX + "c,9,bert,1,12\nb,5,bert,1,12\na,5,bert,1,12\n")
    assert [job.name for job in workload.jobs] == ["b", "a", "c"]


@pytest.mark.parametrize(
    "content",
    [
        (POLLUX + "a,0,bert,1,12\n").replace("\n", "\r\n"),
        (POLLUX + "a,0,bert,1,12\n").replace("\n", "\r"),
        "\ufeff" + POLLUX + "a,0,bert,1,12",
        "\n\n" + POLLUX + "\n  \n,,,,\na,0,bert,1,12\n\n",
        POLLUX.replace(",", " , ") + ' a , 0 ,"bert", 1 , 12 \n',
        POLLUX + "a,0.0,bert,1.0,12.0\n",
        "batch_size,comment,num_replicas,application,time,name\n12,x,1,bert,0,a\n",
    ],
    ids=["windows", "old mac", "byte-order mark", "blank lines", "spaces", "floats", "other columns"],
)
def test_harmless_differences_between_files_are_accepted(folder: Folder, content: str) -> None:
    assert folder.load("w.csv", content) == folder.load("w.csv", POLLUX + "a,0,bert,1,12\n")


def test_windows_line_ends_and_a_byte_order_mark_are_accepted_in_the_other_forms(folder: Folder) -> None:
    trace = folder.load("w.trace", "\ufeff" + gavel_line().replace("\n", "\r\n"))
    assert trace == folder.load("w.trace", gavel_line())
    text = "name: w\r\njobs:\r\n  - {name: a, submit: 0, slots: 1, application: bert}\r\n"
    assert folder.load("w.yaml", "\ufeff" + text) == folder.load("w.yaml", text.replace("\r\n", "\n"))


# --- Guessing ---


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("w.yaml", "jobs: []", "native"),
        ("w", "# mine\njobs:\n", "native"),
        ("w.txt", "name,slots,submit\n", "native"),
        ("w.csv", POLLUX, "pollux"),
        ("w.csv", POLLUX.strip() + ",category\n", "sia"),
        ("w.trace", "anything", "gavel"),
        ("w.txt", gavel_line(), "gavel"),
        ("w.csv", TIRESIAS, "tiresias"),
        ("w.csv", PHILLY, "philly"),
        ("w.csv", "timestamp,duration,num_gpus\n", "philly"),
    ],
)
def test_the_format_is_guessed_from_the_columns_and_else_from_extension_and_layout(
    name: str, content: str, format: str
) -> None:
    assert guess_format(TextFile(name, content)) == format


def test_a_file_of_no_known_format_is_refused_in_one_sentence(folder: Folder) -> None:
    known = "native, pollux, sia, gavel, tiresias, rubick, philly"
    assert folder.refusal("w.csv", "a;b\n1;2\n") == [
        f"w.csv fits none of the formats {known}: its first line is 'a;b'."
    ]
    assert folder.refusal("w.csv", "name,time,application,replicas,batch_size\n") == [
        f"w.csv fits none of the formats {known}: its first line is 'name,time,application,replicas,batch_size'; "
        "for pollux it lacks num_replicas."
    ]
    (sentence,) = folder.refusal("w.csv", "x" * 500_000)
    assert len(sentence) < 300


def test_a_file_that_fits_two_formats_is_refused_in_one_sentence(folder: Folder) -> None:
    assert folder.refusal("w.csv", POLLUX.strip() + ",submit,slots\n") == [
        "w.csv could be in the format native or pollux: say which."
    ]


def test_an_unknown_format_is_refused_with_what_was_probably_meant(folder: Folder) -> None:
    assert folder.refusal("w.csv", POLLUX, "polux") == [
        "format is 'polux', but must be one of native, pollux, sia, gavel, tiresias, rubick, philly "
        "(did you mean pollux?)."
    ]


# --- What is refused ---


def test_every_bad_cell_is_reported_with_line_column_and_what_would_be_right(folder: Folder) -> None:
    rows = "a,-5,bert,1,12\nb c,nan,,two,0\nc,1,bert,1\nd,1,bert,1,12,7\na,1,bert,1.5,12\ne,1,bert,9999999,12\n"
    assert folder.refusal("w.csv", POLLUX + rows) == [
        "w.csv, line 2, column time is '-5', but must be a number of seconds from 0 to 1e+10.",
        "w.csv, line 3, column name is 'b c', but must be a name of up to 63 letters, digits, '.', '_' and '-' that "
        "starts with a letter or digit.",
        "w.csv, line 3, column time is 'nan', but must be a number of seconds from 0 to 1e+10.",
        "w.csv, line 3, column application is '', but must be a text without control characters.",
        "w.csv, line 3, column num_replicas is 'two', but must be a whole number from 1 to 1000000.",
        "w.csv, line 3, column batch_size is '0', but must be a whole number from 1 to 1000000000000000.",
        "w.csv, line 4, column batch_size is missing: the line has only 4 cells.",
        "w.csv, line 5 has 6 cells, but there are 5 columns.",
        "w.csv, line 6, column num_replicas is '1.5', but must be a whole number from 1 to 1000000.",
        "w.csv, line 7, column num_replicas is '9999999', but must be a whole number from 1 to 1000000.",
    ]


def test_two_jobs_of_one_name_are_reported_with_both_lines(folder: Folder) -> None:
    rows = "a,0,bert,1,12\nb,0,bert,1,12\n\na,0,bert,1,12\n"
    assert folder.refusal("w.csv", POLLUX + rows) == [
        "w.csv, line 5, column name is 'a', but must be the name of a single job: line 2 has it as well."
    ]
    assert folder.refusal("w.csv", TIRESIAS + "1,1,0,1,x,5,0\n1,1,0,1,x,5,0\n") == [
        "w.csv, line 3, column job_id is '1', but must be the name of a single job: line 2 has it as well."
    ]


def test_duplicates_and_bad_cells_are_reported_in_the_order_of_the_lines(folder: Folder) -> None:
    sentences = folder.refusal("w.csv", POLLUX + "a,0,bert,1,12\na,0,bert,1,12\nb,x,bert,1,12\n")
    assert [sentence.split(",")[1] for sentence in sentences] == [" line 3", " line 4"]


def test_a_file_with_thousands_of_mistakes_is_reported_in_twenty_sentences(folder: Folder) -> None:
    sentences = folder.refusal("w.csv", POLLUX + "a,x,bert,1,12\n" * 5000)
    assert len(sentences) == 21
    assert sentences[-1] == "w.csv has more mistakes than these first 20."
    jobs = "".join(f"  - {{name: j{i}, submit: x, slots: 1, application: bert}}\n" for i in range(1000))
    assert folder.refusal("w.yaml", f"jobs:\n{jobs}")[-1] == "w.yaml has more mistakes than these first 20."


def test_missing_repeated_and_misspelt_columns_are_named(folder: Folder) -> None:
    assert folder.refusal("w.csv", "name,time,application,replicas,batch_size\n", "pollux") == [
        "w.csv, line 1 has no column 'num_replicas' (did you mean replicas?)."
    ]
    assert folder.refusal("w.csv", POLLUX.strip() + ",time\n") == ["w.csv, line 1 has 2 columns 'time'."]
    assert folder.refusal("w.csv", "name,submit,slots,applicaton\n") == [
        "w.csv, line 1 has a column 'applicaton' that is not known (did you mean application?)."
    ]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("w.csv", "", "w.csv is empty."),
        ("w.csv", "\ufeff \r\n\n", "w.csv is empty."),
        (
            "w.csv",
            ",,,\n,,\n",
            "w.csv fits none of the formats native, pollux, sia, gavel, tiresias, rubick, philly: "
            "its first line is ',,,'.",
        ),
        ("w.yaml", "", "w.yaml is empty."),
        ("w.csv", POLLUX, "w.csv holds no jobs."),
        ("w.csv", PHILLY + "2017-10-09 07:00:00,0,1,0,a\n", "w.csv holds no jobs."),
        ("w.yaml", "jobs: []", "w.yaml, jobs holds no jobs."),
        ("w.yaml", "name: x", "w.yaml, jobs is missing: it must be a list."),
        ("w.yaml", "jobs: 7", "w.yaml, jobs is 7, but must be a list."),
        ("w.yaml", "[1]", "w.yaml is a list, but must be a mapping of field names to values."),
        ("w.csv", POLLUX.encode("utf-16"), "w.csv is not a text file in UTF-8."),
        ("w.csv", POLLUX.encode() + b"caf\xe9,0,bert,1,12\n", "w.csv is not a text file in UTF-8."),
        ("w.csv", POLLUX + 'a,0,"bert,1,12\n', "w.csv, line 2 cannot be read (unexpected end of data)."),
        (
            "w.trace",
            "LM\t5\n",
            "w.trace has a first line of 2 cells separated by tabs, but a job of Gavel's has 7, 10 or, in Shockwave's, "
            "12.",
        ),
    ],
)
def test_a_file_without_usable_jobs_is_refused_in_one_sentence(
    folder: Folder, name: str, content: str | bytes, sentence: str
) -> None:
    assert folder.refusal(name, content) == [sentence]


def test_a_table_of_blank_cells_is_empty(folder: Folder) -> None:
    assert folder.refusal("w.csv", ",,,\n,,\n", "pollux") == ["w.csv is empty."]


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.csv", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(InvalidInput) as caught:
            load_workload(path)
        assert str(caught.value) == f"{path} cannot be read ({why})."
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_workload(Path("nul\0byte"))


def test_a_huge_file_is_refused_before_it_fills_the_memory(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "MAX_BYTES", 2**20)
    content = POLLUX + "a,0,bert,1,12\n" * 100_000
    assert folder.refusal("w.csv", content) == ["w.csv has more than the 1 MiB that a workload may have."]


def test_a_cell_of_absurd_length_is_refused(folder: Folder) -> None:
    sentences = folder.refusal("w.csv", POLLUX + "a,0," + "x" * 200_000 + ",1,12\n")
    assert sentences == ["w.csv, line 2 cannot be read (field larger than field limit (131072))."]


def test_bad_cells_of_gavels_are_named_by_what_they_mean(folder: Folder) -> None:
    bad = gavel_line(c5="0", c6="x", c7="0", c8="0", c9="-1")
    assert folder.refusal("w.trace", gavel_line() + bad + "LM\t1\n") == [
        "w.trace, line 2, column total_steps is '0', but must be a whole number from 1 to 1000000000000000.",
        "w.trace, line 2, column scale_factor is 'x', but must be a whole number from 1 to 1000000.",
        "w.trace, line 2, column priority_weight is '0', but must be a positive number.",
        "w.trace, line 2, column slo is '0', but must be a multiple of the job's ideal duration, or -1 for no "
        "deadline.",
        "w.trace, line 2, column arrival_time is '-1', but must be a number of seconds from 0 to 1e+10.",
        "w.trace, line 3, column total_steps is missing: the line has only 2 cells.",
        "w.trace, line 3, column scale_factor is missing: the line has only 2 cells.",
        "w.trace, line 3, column priority_weight is missing: the line has only 2 cells.",
        "w.trace, line 3, column slo is missing: the line has only 2 cells.",
        "w.trace, line 3, column arrival_time is missing: the line has only 2 cells.",
    ]


def test_bad_cells_of_sia_tiresias_and_philly_say_what_would_be_right(folder: Folder) -> None:
    assert folder.refusal("w.csv", POLLUX.strip() + ",category\na,0,bert,1,12,elastic\n") == [
        "w.csv, line 2, column category is 'elastic', but must be one of adaptive, scale-gpus, rigid."
    ]
    assert folder.refusal("w.csv", TIRESIAS + "1,0,0,1,x,0,0\n") == [
        "w.csv, line 2, column num_gpu is '0', but must be a whole number from 1 to 1000000.",
        "w.csv, line 2, column duration is '0', but must be a number of seconds above 0 and at most 1e+10.",
    ]
    assert folder.refusal("w.csv", PHILLY + "None,-1,1,0,a\n") == [
        "w.csv, line 2, column timestamp is 'None', but must be a date and time such as 2017-10-09 07:01:55.",
        "w.csv, line 2, column duration is '-1', but must be a number of seconds from 0 to 1e+10.",
    ]


def test_every_mistake_in_a_native_yaml_file_is_reported_with_its_place(folder: Folder) -> None:
    text = """
jobs:
  - {name: a, submit: 0, slots: 1, application: bert}
  - {name: a, submit: 0, slots: 1, application: bert}
  - {name: b, submit: -5, slots: 0, application: bert, adaptivity: elastic}
  - {name: c, submit: 0, slots: 1}
  - {name: d, submit: 0, slots: 1, application: bert, duration: 5s}
  - {name: e, submit: 0, slots: 1, duration: 5s, adaptivity: adaptive, steps: 3}
  - {name: f, submit: 0, slots: 1, duration: 0, slo: 1h, slo_factor: 2}
  - {name: g, submit: 0, slots: 1, aplication: bert}
  - {submit: 0, slots: two, application: bert, weight: .nan}
  - 7
"""
    assert folder.refusal("w.yaml", text) == [
        "w.yaml, jobs[1].name is 'a', but must be the name of a single job: jobs[0] has it as well.",
        "w.yaml, jobs[2].submit is -5, but must be a duration such as 90, 90s, 2h30m or 1d, not negative.",
        "w.yaml, jobs[2].adaptivity is 'elastic', but must be one of adaptive, fixed_batch, rigid.",
        "w.yaml, jobs[2].slots is 0, but must be a whole number, at least 1 and at most 1000000.",
        "w.yaml, jobs[3].application or duration must be given.",
        "w.yaml, jobs[4].duration is 5.0, but goes with no application: give one of the two.",
        "w.yaml, jobs[5].steps is 3, but goes with no duration.",
        "w.yaml, jobs[5].adaptivity is 'adaptive', but must be rigid: a duration says nothing about other numbers of "
        "slots.",
        "w.yaml, jobs[6].duration is 0.0, but must be a number, above 0 and at most 10000000000.0.",
        "w.yaml, jobs[6].slo_factor is 2.0, but goes with no slo.",
        "w.yaml, jobs[7].application or duration must be given.",
        "w.yaml, jobs[7].aplication is not a known field (did you mean application?).",
        "w.yaml, jobs[8].name is missing: it must be text.",
        "w.yaml, jobs[8].slots is 'two', but must be a whole number.",
        "w.yaml, jobs[8].weight is '.nan', but must be a number.",
        "w.yaml, jobs[9] is 7, but must be a mapping of field names to values.",
    ]


def test_the_same_mistakes_in_a_native_csv_file_are_reported_with_line_and_column(folder: Folder) -> None:
    rows = "a,0,1,bert,,\na,0,1,bert,,\nb,x,one,bert,,\nc,0,1,,,\nd,0,1,bert,5s,\ne,0,1,,5s,adaptive\n,0,0,bert,,lazy\n"
    rows += ",0,0,bert,,\n"
    assert folder.refusal("w.csv", "name,submit,slots,application,duration,adaptivity\n" + rows) == [
        "w.csv, line 3, column name is 'a', but must be the name of a single job: line 2 has it as well.",
        "w.csv, line 4, column submit is 'x', but must be a duration such as 90, 90s, 2h30m or 1d, not negative.",
        "w.csv, line 4, column slots is 'one', but must be a whole number.",
        "w.csv, line 5, column application or duration must be given.",
        "w.csv, line 6, column duration is 5.0, but goes with no application: give one of the two.",
        "w.csv, line 7, column adaptivity is 'adaptive', but must be rigid: a duration says nothing about other "
        "numbers of slots.",
        "w.csv, line 8, column adaptivity is 'lazy', but must be one of adaptive, fixed_batch, rigid.",
        "w.csv, line 9, column name is '', but must be a name of up to 63 letters, digits, '.', '_' and '-' that "
        "starts with a letter or digit.",
        "w.csv, line 9, column slots is 0, but must be a whole number, at least 1 and at most 1000000.",
    ]


def test_a_native_job_carries_its_loss_curve_in_both_forms(folder: Folder) -> None:
    curve = LossCurve(start=2.3, end=0.1, steepness=20.0)
    fields = "name: a, submit: 0, slots: 1, application: bert"
    (job,) = folder.load("w.yaml", f"jobs: [{{{fields}, loss: {{start: 2.3, end: 0.1, steepness: 20}}}}]").jobs
    assert job.loss == curve
    rows = "a,0,1,bert,2.3 0.1 20\nb,0,1,bert,2.3 0.1 20 exponential\nc,0,1,bert,\n"
    jobs = folder.load("w.csv", "name,submit,slots,application,loss\n" + rows).jobs
    assert [job.loss for job in jobs] == [curve, replace(curve, exponential=True), None]


def test_mistakes_in_loss_curves_say_what_would_be_right(folder: Folder) -> None:
    fields = "name: a, submit: 0, slots: 1, application: bert"
    assert folder.refusal("w.yaml", f"jobs: [{{{fields}, loss: {{start: 1, end: 2, steepness: 20}}}}]") == [
        "w.yaml, jobs[0].loss.end is 2.0, but must be less than start, which is 1.",
    ]
    rows = "a,0,1,bert,1 2 20\nb,0,1,bert,2 1\nc,0,1,bert,2 1 20 linear\n"
    expected = "but must be start, end and steepness of a loss curve, as in 2.3 0.1 20, or 2.3 0.1 20 exponential."
    assert folder.refusal("w.csv", "name,submit,slots,application,loss\n" + rows) == [
        f"w.csv, line {line}, column loss is '{cell}', {expected}"
        for line, cell in ((2, "1 2 20"), (3, "2 1"), (4, "2 1 20 linear"))
    ]


def test_yaml_that_cannot_be_read_is_refused_with_file_and_line(folder: Folder) -> None:
    (sentence,) = folder.refusal("w.yaml", "jobs:\n  - {name: a, name: b}\n")
    assert sentence == "w.yaml cannot be read: the key 'name' appears twice (line 2, column 15)."
    assert folder.refusal("w.yaml", "jobs: " + " " * 2**20) == [
        "w.yaml has more than the 1,048,576 characters of YAML that are allowed; the CSV form may be longer."
    ]


# --- The peers' own files ---


def peers(folder: str, pattern: str) -> list[Path]:
    return sorted((PEERS / folder).glob(pattern))


def counts(paths: list[Path], format: str) -> Counter[str]:
    """Jobs by folder, each file loaded by its guessed format, which must be the given one."""
    total: Counter[str] = Counter()
    for path in paths:
        assert guess_format(TextFile.read(path)) == format
        total[path.parent.name] += len(load_workload(path).jobs)
    return total


@pytest.mark.needs_peers("pollux")
def test_pollux_workloads_load_completely() -> None:
    expected = {"workloads": 640, "workloads-0.5": 640, "workloads-1.5": 1920, "workloads-2.0": 2560}
    by_folder = counts(peers("pollux", "workloads*/*.csv"), "pollux")
    assert by_folder == {**expected, "workloads-realistic": 640}


@pytest.mark.needs_peers("sia/sia-simulator/workloads")
def test_sia_workloads_load_completely() -> None:
    by_folder = counts(peers("sia/sia-simulator/workloads", "*/*.csv"), "pollux")
    assert by_folder == {"newtrace": 1920, "philly": 480, "saturn": 320}


@pytest.mark.needs_peers("gavel/traces")
def test_gavel_traces_load_completely_in_both_layouts() -> None:
    by_folder = counts(peers("gavel/traces", "**/*.trace"), "gavel")
    assert by_folder == {"generated": 300, "msr_converted": 951, "physical_cluster": 287, "seed=0": 13_264}
    jobs = load_workload(PEERS / "gavel/traces/physical_cluster/max_min_fairness.trace").jobs
    assert Counter(job.requested_slots for job in jobs) == {1: 59, 2: 19, 4: 18}
    assert {(job.weight, job.slo_factor) for job in jobs} == {(1.0, None)}


@pytest.mark.needs_peers("traces/shockwave")
def test_shockwave_traces_load_completely() -> None:
    assert counts(peers("traces/shockwave", "*.trace"), "gavel") == {"shockwave": 2600}


@pytest.mark.needs_peers("traces/tiresias")
def test_the_tiresias_trace_has_the_totals_of_its_description() -> None:
    (path,) = peers("traces/tiresias", "60_job.csv")
    jobs = load_workload(path).jobs
    assert Counter(job.requested_slots for job in jobs) == {1: 30, 2: 10, 4: 10, 8: 10}
    assert sum(job.requested_slots * (job.duration_s or 0) for job in jobs) == 26_624
    assert jobs[-1].submit_s == 1779


@pytest.mark.needs_peers("traces/philly-adaptdl")
def test_all_of_philly_loads() -> None:
    (path,) = peers("traces/philly-adaptdl", "philly.csv")
    workload = load_workload(path)
    assert len(workload.jobs) == 82_247
    assert Counter(job.requested_slots for job in workload.jobs)[1] == 76_627
    assert len({job.owner for job in workload.jobs}) == 15
    assert workload.jobs[0].submit_s == 0
    assert workload.notes == ()


@pytest.mark.needs_peers("traces/philly-adaptdl")
def test_a_job_of_a_trace_costs_as_much_to_load_however_many_there_are(tmp_path: Path) -> None:
    (path,) = peers("traces/philly-adaptdl", "philly.csv")
    header, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    calls = []
    for jobs in (1000, 4000):
        part = tmp_path / f"{jobs}.csv"
        part.write_text(header + "".join(rows[:jobs]), encoding="utf-8")
        calls.append(count_calls(lambda part=part: load_workload(part)))
    assert calls[1] < 4 * calls[0]
    assert calls[1] < 60 * 4000


# --- The documentation ---


def test_the_examples_of_the_documentation_load_as_what_they_stand_under(tmp_path: Path) -> None:
    text = DOCS.read_text(encoding="utf-8")
    sections = re.split(r"^### `(\w+)`$", text.split("## Your own trace")[0], flags=re.MULTILINE)
    seen = Counter[str]()
    for format, section in zip(sections[1::2], sections[2::2], strict=True):
        for kind, example in re.findall(r"```(csv|tsv|yaml)\n(.*?)```", section, flags=re.DOTALL):
            path = tmp_path / f"example.{kind}"
            path.write_text(example, encoding="utf-8")
            assert guess_format(TextFile.read(path)) == format
            assert len(load_workload(path).jobs) >= 2
            seen[format] += 1
    assert seen == {**dict.fromkeys(FORMATS, 1), "native": 2}


def test_the_python_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), {})


def test_the_documentation_describes_every_native_field() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text.split("### `native`")[1].split("### `pollux`")[0], re.M)) == set(
        COLUMNS
    )
