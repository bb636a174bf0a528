"""What a bridge was asked for and has not answered: by job and by thing, whatever came in between."""

from hypothesis import given
from hypothesis import strategies as st

from geminid.serve.executors.ray.unanswered import Request, Unanswered

#: Of a bridge that is not there (0), nothing is awaited.
requests = st.builds(
    Request, st.integers(0, 3), st.sampled_from("jk"), st.lists(st.sampled_from("abcd"), unique=True).map(tuple)
)
steps = st.one_of(
    requests.map(lambda request: ("ask", request)),
    st.integers(0, 12).map(lambda number: ("answered", number)),
    st.sampled_from("jk").map(lambda job: ("drop_job", job)),
    st.integers(1, 3).map(lambda bridge: ("drop_bridge", bridge)),
)


@given(st.lists(steps, max_size=12))
def test_what_is_known_of_jobs_and_things_is_what_has_not_been_answered(steps):
    known, plain, numbers = Unanswered(), {}, []
    for step, argument in steps:
        match step:
            case "ask":

                def send(number, bridge=argument.bridge):
                    numbers.append(number)
                    return bridge or None

                known.ask(argument.job_id, argument.things, send)
                if argument.bridge:
                    plain[numbers[-1]] = argument
            case "answered":
                assert known.answered(argument) == plain.pop(argument, None)
            case "drop_job":
                known.drop_job(argument)
                plain = {one: request for one, request in plain.items() if request.job_id != argument}
            case "drop_bridge":
                known.drop_bridge(argument)
                plain = {one: request for one, request in plain.items() if request.bridge > argument}
        assert len(set(numbers)) == len(numbers)
        assert known.jobs == {request.job_id for request in plain.values()}
        things = {thing for request in plain.values() for thing in request.things}
        assert known.things == things
        assert known.among("dcba") == [thing for thing in "dcba" if thing in things]
        for job in "jk":
            mine = [request for request in plain.values() if request.job_id == job]
            assert known.of(job) == {thing for request in mine for thing in request.things}
