"""Reading input: all mistakes at once, each in one sentence; text from strangers does no harm."""

import pickle
from dataclasses import dataclass
from enum import StrEnum

import pytest

from geminid.documents import dump_yaml, load_json, load_yaml
from geminid.fields import MAX_TEXT_LENGTH, NOT_SHOWN, InvalidInput, Problem, Reader, check_number, read_value


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Lamp:
    """A value with a rule of its own, for the tests below."""

    watts: float
    least_watts: float

    def __post_init__(self) -> None:
        problems = check_number("watts", self.watts, above=0)
        if not problems and self.watts < self.least_watts:
            problems = [Problem("watts", self.watts, "must be at least least_watts", involves=("least_watts",))]
        if problems:
            raise InvalidInput(problems)


def read_lamp(reader: Reader) -> Lamp | None:
    return reader.attempt(lambda: Lamp(reader.number("watts"), reader.number("least_watts", 0.0)))


def sentences(error: pytest.ExceptionInfo[InvalidInput]) -> list[str]:
    return str(error.value).splitlines()


def problems_of(reader: Reader) -> list[str]:
    return [str(problem) for problem in reader.problems]


def test_a_problem_names_the_field_its_value_and_what_would_be_right() -> None:
    assert str(Problem("slots", 0, "must be at least 1")) == "slots is 0, but must be at least 1."


def test_a_problem_does_not_show_what_must_not_be_seen() -> None:
    assert str(Problem("env.KEY", NOT_SHOWN, "must be text")) == "env.KEY must be text."


def test_values_are_shown_as_people_write_them_and_never_at_length() -> None:
    values = [None, True, "x" * 1000, 10**200, {"a": 1}, [1], [], 1.5, object()]
    shown = [str(Problem("f", value, "is wrong"))[: -len(", but is wrong.")] for value in values]
    assert shown[:2] == ["f is null", "f is true"]
    assert shown[2].startswith("f is 'xxx")
    assert len(shown[2]) < 80
    assert shown[3:] == [
        "f is a number of absurd size",
        "f is a mapping",
        "f is a list",
        "f is an empty list",
        "f is 1.5",
        "f is of type object",
    ]


def test_all_problems_are_reported_at_once_including_the_constructors() -> None:
    with pytest.raises(InvalidInput) as error:
        read_value({"watts": -3, "least_watts": "many", "color": 1}, read_lamp)
    assert sentences(error) == [
        "least_watts is 'many', but must be a number.",
        "watts is -3.0, but must be a number, above 0.",
        "color is not a known field; the fields here are least_watts, watts.",
    ]


def test_a_rule_about_two_fields_is_silent_when_one_of_them_was_unreadable() -> None:
    with pytest.raises(InvalidInput) as error:
        read_value({"watts": "x", "least_watts": 50}, read_lamp)
    assert sentences(error) == ["watts is 'x', but must be a number."]


def test_a_good_value_is_built() -> None:
    assert read_value({"watts": 60, "least_watts": None}, read_lamp) == Lamp(60.0, 0.0)


def test_what_is_not_a_mapping_is_one_problem_and_not_a_list_of_missing_fields() -> None:
    with pytest.raises(InvalidInput) as error:
        read_value([1, 2], read_lamp)
    assert sentences(error) == ["the input is a list, but must be a mapping of field names to values."]


def test_thousands_of_unknown_fields_are_counted_and_not_listed() -> None:
    with pytest.raises(InvalidInput) as error:
        read_value({"watts": 1, **{f"field-{i}": i for i in range(10_000)}}, read_lamp)
    assert len(sentences(error)) == 21
    assert sentences(error)[-1] == "the input has 9980 more fields that are not known."


def test_errors_survive_pickling() -> None:
    error = InvalidInput([Problem("a", 1, "must be 2")])
    assert str(pickle.loads(pickle.dumps(error))) == "a is 1, but must be 2."


@pytest.mark.parametrize("value", [True, 1.0, "1", float("nan"), [], {}])
def test_only_whole_numbers_are_whole_numbers(value: object) -> None:
    reader = Reader({"n": value})
    reader.integer("n")
    assert problems_of(reader)[0].endswith("must be a whole number.")


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), 10**400, None])
def test_only_finite_numbers_are_numbers(value: object) -> None:
    reader = Reader({"x": value})
    reader.number("x")
    assert problems_of(reader)[0].endswith("must be a number.")


def test_ranges_are_part_of_the_sentence() -> None:
    reader = Reader({"n": 9, "x": 0})
    reader.integer("n", at_least=1, at_most=8)
    reader.number("x", above=0)
    assert problems_of(reader) == [
        "n is 9, but must be a whole number, at least 1 and at most 8.",
        "x is 0, but must be a number, above 0.",
    ]


@pytest.mark.parametrize("text", ["a\x00b", "a\nb", "\x1b[31m", "a\u202eb", "\ud800", "x" * 5000])
def test_text_has_no_control_characters_and_a_bounded_length(text: str) -> None:
    reader = Reader({"t": text})
    reader.text("t")
    assert len(reader.problems) == 1


def test_numbers_where_text_is_wanted_get_a_hint() -> None:
    reader = Reader({"t": 1.10})
    reader.text("t")
    assert problems_of(reader) == ["t is 1.1, but must be text; write it in quotes."]


def test_a_choice_lists_the_options_and_guesses() -> None:
    reader = Reader({"c": "gren", "d": "red", "e": ["red"]})
    reader.choice("c", Colour)
    assert reader.choice("d", Colour) is Colour.RED
    assert reader.choice("e", Colour, Colour.GREEN) is Colour.GREEN
    assert problems_of(reader) == [
        "c is 'gren', but must be one of red, green (did you mean green?).",
        "e is a list, but must be one of red, green.",
    ]


def test_units_are_read_and_explained() -> None:
    reader = Reader({"d": "2h", "s": "1KiB", "b": "1GB/s", "bad": "later"})
    assert (reader.duration("d"), reader.size("s"), reader.bandwidth("b")) == (7200.0, 1024, 1e9)
    reader.duration("bad")
    assert problems_of(reader) == ["bad is 'later', but must be a duration such as 90, 90s, 2h30m or 1d, not negative."]


def test_nested_fields_have_dotted_and_indexed_names() -> None:
    data = {
        "plans": [{"n": 1}, {"n": "x"}],
        "by_name": {"a": {"n": "y"}, "b": None, "c d": {}},
        "one": {"n": "z"},
    }
    reader = Reader(data)
    one = reader.nested("one")
    assert one is not None
    for entry in (*reader.nested_list("plans"), one, *reader.nested_by_name("by_name").values()):
        entry.integer("n", 0)
    names = [problem.field for problem in reader.problems]
    assert names == ["by_name.'c d'", "plans[1].n", "one.n", "by_name.a.n"]


def test_lists_name_the_bad_elements() -> None:
    reader = Reader({"words": ["a", 1, "b\x00"], "numbers": [1, True], "none": "abc"})
    assert (reader.texts("words"), reader.integers("numbers"), reader.texts("none", None)) == ((), (), None)
    fields = [problem.field for problem in reader.problems]
    assert fields == ["words[1]", "words[2]", "numbers[1]", "none"]


def test_booleans_are_true_or_false_and_nothing_else() -> None:
    reader = Reader({"yes": True, "no": "no", "one": 1})
    assert (reader.boolean("yes"), reader.boolean("no"), reader.boolean("one", True)) == (True, False, True)
    assert [problem.field for problem in reader.problems] == ["no", "one"]


# --- YAML and JSON ---


def test_yaml_is_read_without_the_surprises_of_its_older_version() -> None:
    text = "{a: no, b: 12:30, c: 1e9, d: 2024-01-01, e: '3', f: ~, g: true, h: 08, 1: x, i: }"
    assert load_yaml(text) == {
        "a": "no",
        "b": "12:30",
        "c": 1e9,
        "d": "2024-01-01",
        "e": "3",
        "f": None,
        "g": True,
        "h": 8,
        "1": "x",
        "i": None,
    }


@pytest.mark.parametrize(
    "text",
    ["no", "12:30", "1e9", "2024-01-01", "3", "~", "", "08", "0x1f", "1_000", "true", ".5", "=", "<<", "- a"],
)
def test_yaml_quotes_every_text_that_would_be_read_as_something_else(text: str) -> None:
    assert load_yaml(dump_yaml({"t": text, "list": [text]})) == {"t": text, "list": [text]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x [1]\nb: *x", "anchors and aliases are not allowed (line 1, column 4)"),
        ("a: !!python/object/apply:os.system [ls]", "tags are not allowed (line 1, column 4)"),
        ("a: 1\nb: 2\na: 3", "the key 'a' appears twice (line 3, column 1)"),
        ("a: 1\n---\nb: 2", "there is a second document (line 2, column 1)"),
        ("? [a]\n: 1", "a key must be a simple text (line 1, column 3)"),
        ("[" * 1000, "it is nested more than 32 levels deep (line 1, column 34)"),
        ("a: \x00", "it has characters that YAML does not allow"),
        ("a: \ud800", "it has characters that YAML does not allow"),
        ("x" * (MAX_TEXT_LENGTH + 1), "it has 1,048,577 characters, and at most 1,048,576 are allowed"),
    ],
)
def test_dangerous_yaml_is_refused_in_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load_yaml(text)
    assert sentences(error) == [f"the text cannot be read: {reason}."]


def test_a_syntax_error_has_its_line_and_column() -> None:
    with pytest.raises(InvalidInput, match=r"line \d+, column \d+\)\.$"):
        load_yaml("a: 1\nb: [")


def test_aliases_cannot_blow_up() -> None:
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 20))
    with pytest.raises(InvalidInput, match="anchors and aliases"):
        load_yaml(f"l0: &l0 [x]\n{levels}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ("[NaN]", "NaN is not a number"),
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "it has a number of absurd size"),
        ("{", "Expecting property name enclosed in double quotes (line 1, column 2)"),
    ],
)
def test_bad_json_is_refused_in_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load_json(text)
    assert sentences(error) == [f"the text cannot be read: {reason}."]
