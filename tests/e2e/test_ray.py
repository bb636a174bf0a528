"""The service on a real Ray cluster of several raylets on loopback addresses, and what can go wrong there."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from zipfile import ZipFile

import pytest
from live import SCRIPTS, check_invariants
from onray import OnRay, command_of

import geminid
from geminid.serve.executors.ray.agent import agent_folder
from geminid.serve.executors.ray.executor import AGENTS_S
from geminid.testing.ray_cluster import LoopbackCluster
from waiting import until_equal

pytestmark = pytest.mark.xdist_group("ray")


#: So much memory a process may use for each of its slots.
SLOT_MEMORY_GIB = 6

#: How many slots Ray has free, as Python there says it; None for none.
FREE = "ray.available_resources().get('geminid_slot')"

#: The actors that hold slots, as Python there says it.
SEATS = "[a for a in ray.util.list_named_actors(True) if a['name'].startswith('geminid/')]"


#: Has a node's agent start a process that seems to be a job's, and prints its pid.
STRAY = """
import pathlib, time
from geminid.serve.executors.agents import AgentPool
from geminid.process.launch import Launch
node_id = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeName"] == "{node}")
agents = [one for one in ray.util.list_named_actors(True) if one["name"].endswith("/" + node_id)]
place = ray.get(ray.get_actor(**agents[0]).place.remote())
nodes = AgentPool(lambda event: None)
nodes.know("{node}", place["host"], place["port"], place["token"])
nodes.wait(lambda: nodes.knows("{node}"), 20.0)
root, log = pathlib.Path("/"), pathlib.Path("/dev/null")
process = nodes.start(Launch(["sleep", "3600"], dict(), root, log, "{node}/0", "{name}"))
process.begin()
while not process.pid:
    time.sleep(0.05)
print(process.pid)
"""


def alive(pid: int) -> bool:
    """Whether a process runs."""
    return Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()


#: Says of three of four nodes where they stand, which their labels say otherwise; of one also what is not so.
CLUSTER_FILE = """
network: {zone: 100MB/s, rack_uplink: {oversubscription: 4}}
nodes:
  - {type: cpu, slots: 2, name: n1, rack: x, zone: z}
  - {type: cpu, slots: 2, name: n2, rack: x, zone: z}
  - {type: cpu, slots: 4, name: n3, rack: y, zone: z}
"""


@pytest.fixture(scope="module")
def cluster():
    with LoopbackCluster(nodes=4, slots=2, racks=("b", "a")) as made:
        yield made


@pytest.fixture(scope="module")
def ray(cluster):
    options = ("--slot-memory", f"{SLOT_MEMORY_GIB}GiB")
    with tempfile.TemporaryDirectory() as folder, OnRay(cluster, "--storage", f"local://{folder}", *options) as made:
        made.storage = Path(folder)
        made.wait_for(lambda: len(made.nodes()) == 4)
        yield made


def users_of_slots(ray: OnRay) -> list[tuple[str, int]]:
    """The job and the process that the actor in each slot knows, of those that a process uses."""
    users = f"ray.get([ray.get_actor(**a).user.remote() for a in {SEATS}])"
    found = json.loads(ray.cluster.run(f"print(json.dumps({users}))") or "[]")  # nothing if one of them ends meanwhile
    return sorted((user["job"], user["pid"]) for user in found if user is not None)


@pytest.fixture(autouse=True)
def no_job_is_left(ray):
    """A test that fails leaves its jobs behind: end them, so that the next test has all slots."""
    yield
    with contextlib.suppress(Exception):  # the last test ends the service
        for job in ray.client.get("jobs"):
            if job["phase"] not in ("succeeded", "failed", "cancelled"):
                ray.run("cancel", job["id"])
                ray.over(job["id"], timeout_s=60.0)


def test_jobs_spread_over_nodes_and_their_logs_are_here(ray):
    job = ray.unhurried("a", 5)
    plain = ray.submit("sh", "-c", "echo on $GEMINID_NODE; ulimit -d", name="hello", slots=2)
    assert len(ray.on(job)) >= 3
    limits = [Path(f"/proc/{pid}/limits").read_text() for pid in ray.worker_pids(job)]
    assert all(re.search(rf"Max data size +{SLOT_MEMORY_GIB << 30} ", told) for told in limits)
    ray.finish("a", job)
    assert ray.over(plain)["phase"] == "succeeded"
    where, limit_kib = ray.run("logs", plain).stdout.splitlines()
    assert where in {f"on n{number}" for number in range(1, 5)}
    assert int(limit_kib) == 2 * SLOT_MEMORY_GIB << 20
    code = ray.home / "hello"
    code.mkdir()
    told = "pathlib.Path('word.txt').read_text(), os.environ['FROM'], os.getcwd()"
    (code / "hello.py").write_text(f"import os, pathlib\nprint({told})\n")
    (code / "word.txt").write_text("shipped")
    alone = ray.submit(sys.executable, "hello.py", working_dir=str(code), env={"FROM": "itself"}, name="folder")
    assert ray.over(alone)["phase"] == "succeeded", ray.run("logs", alone).stdout
    word, variable, where = ray.run("logs", alone).stdout.split()
    assert (word, variable) == ("shipped", "itself")
    assert where != str(code)
    ray.wait_for(lambda: not Path(where).exists())  # nobody needs it any more
    failing = ray.submit(sys.executable, "-c", "raise SystemExit('no such luck')", max_retries=1)
    assert "exit code 1" in ray.over(failing)["reason"]
    assert ray.run("logs", failing).stdout.count("no such luck") == 2  # of each try


def test_the_environment_that_a_job_asks_for_is_there_for_elastic_jobs_too(ray):
    """With a package, of a wheel, so that nothing has to be downloaded; ``python`` is the one that has it."""
    code = ray.home / "packaged"
    code.mkdir()
    wheel = code / "tinyword-1.0-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: tinyword\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with ZipFile(wheel, "w") as package:
        package.writestr("tinyword.py", "WORD = 'from its own package'\n")
        for name, text in about.items():
            package.writestr(f"tinyword-1.0.dist-info/{name}", text)
    (code / "left-out.txt").touch()
    wanted = f"pip: [{wheel}]\nexcludes: [left-out.txt]\nenv_vars: {{FROM: its-environment}}\n"
    (code / "runtime_env.yaml").write_text(wanted)
    (code / "train.py").write_text(
        "import os, runpy, sys, tinyword\n"
        "print(tinyword.WORD, os.environ['FROM'], os.path.exists('left-out.txt'), flush=True)\n"
        "print('in', os.getcwd(), flush=True)\n"
        "runpy.run_path(sys.argv.pop(1))\n"
    )
    options = ("--working-dir", code, "--min-slots", 1, "--max-slots", 2, "--retries", 0)
    counting = (SCRIPTS / "counting.py", ray.home / "q", "--samples", 50, "--epochs", 2)
    told = json.loads(ray.run("submit", "--json", *options, "--", "python", "train.py", *counting).stdout)
    assert told["kind"] == "unknown"  # it becomes elastic when it calls geminid.init()
    job = told["id"]
    assert ray.over(job)["phase"] == "succeeded", ray.story(job)
    log = ray.run("logs", job).stdout
    assert "from its own package its-environment False" in log
    (folder,) = {line.split()[1] for line in log.splitlines() if line.startswith("in ")}
    assert folder.startswith(
        str(Path(tempfile.gettempdir(), f"geminid-{os.getuid()}"))
    )  # Ray replaces its own, at times
    assert ray.exactly_once("q", 50, 2)


def test_a_job_that_is_cancelled_while_its_environment_is_set_up_leaves_its_slots_at_once(ray):
    """What it asks for is at a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = ray.home / "slow"
        code.mkdir()
        port = silent.getsockname()[1]
        (code / "runtime_env.yaml").write_text(f"pip: ['http://127.0.0.1:{port}/slow-1.0-py3-none-any.whl']\n")
        job = ray.submit("python", "-c", "print('never')", working_dir=str(code), name="slow")
        told = "its code, with the environment that it asks for, is brought to"
        ray.wait_for(lambda: told in ray.run("explain", job).stdout)
        assert ray.run("cancel", job).returncode == 0
        all_slots = ray.submit("true", min_slots=8, max_slots=8, name="all")
        assert ray.over(all_slots)["phase"] == "succeeded"
        assert ray.job(job)["phase"] == "cancelled"
    broken = Path(ray.home, "broken", "geminid", "__init__.py")
    broken.parent.mkdir(parents=True)
    broken.write_text("raise ImportError('there is no geminid in this environment')")
    (code / "runtime_env.yaml").write_text(f"env_vars: {{PYTHONPATH: {broken.parents[1]}}}\n")
    ill = ray.over(ray.submit("true", working_dir=str(code), name="ill"))
    assert ill["phase"] == "failed"
    assert "there is no geminid in this environment" in ill["reason"]
    assert ray.over(ray.submit("true", min_slots=8, max_slots=8, name="all"))["phase"] == "succeeded"


def test_a_job_has_the_code_that_was_submitted_wherever_and_whenever_it_comes(ray):
    code = ray.home / "edited"
    code.mkdir()
    (code / "word.txt").write_text("first")
    (code / "train.py").write_text(
        "import runpy, sys\nprint('word', open('word.txt').read(), flush=True)\nrunpy.run_path(sys.argv.pop(1))\n"
    )
    enough = ray.home / "o-enough"
    slowly = ("--samples", "400", "--epochs", "60", "--max-batch", "64", "--pause", "0.2", "--until", str(enough))
    command = (sys.executable, "train.py", str(SCRIPTS / "counting.py"), str(ray.home / "o"), *slowly)
    job = ray.submit(*command, working_dir=str(code), min_slots=1, max_slots=2)
    ray.until(job, lambda job: job["phase"] == "running")
    (code / "word.txt").write_text("second")
    other = ray.submit("cat", "word.txt", working_dir=str(code))
    assert ray.over(other)["phase"] == "succeeded"
    assert ray.run("logs", other).stdout.strip() == "second"
    shutil.rmtree(code)
    assert ray.run("set", job, "--max-slots", 8, "--min-slots", 8).returncode == 0
    ray.settled(job, 8)
    victim = max(ray.worker_pids(job))
    ray.kill()
    os.kill(victim, signal.SIGKILL)  # whoever replaces it has the same code, of which the next service has to know
    ray.up()
    ray.until(job, lambda job: victim not in ray.worker_pids(job["id"]) and job["phase"] == "running")
    ray.settled(job, 8)
    victim = max(ray.worker_pids(job))
    for path in Path(os.readlink(f"/proc/{victim}/cwd")).iterdir():  # as whoever tidies /tmp might: it is brought again
        path.unlink()
    os.kill(victim, signal.SIGKILL)
    ray.until(job, lambda job: "its code is not on the node any more" in ray.story(job["id"]))
    ray.settled(job, 8)
    enough.touch()
    done = ray.over(job)
    assert (done["phase"], done["failures"]) == ("succeeded", 0), ray.run("logs", job).stdout[-2000:]
    assert ray.exactly_once("o", 400, 60)
    words = [line.split()[-1] for line in ray.run("logs", job).stdout.splitlines() if " word " in f" {line}"]
    assert len(words) >= 9
    assert set(words) == {"first"}
    gone = ray.run("submit", "--working-dir", code, "--", "true")
    assert gone.returncode == 2
    assert "must be a folder of the service's machine" in " ".join(gone.stderr.split())
    code.mkdir()
    (code / "runtime_env.yaml").write_text("[pip")
    ill = ray.run("submit", "--working-dir", code, "--", "true")
    assert ill.returncode == 2
    assert "runtime_env.yaml that is not YAML" in " ".join(ill.stderr.split())


def test_ranks_follow_the_racks_and_an_agent_that_dies_with_code_on_its_way_fails_no_job(ray):
    code = ray.home / "empty"
    code.mkdir()
    agent = ray.agent("n4")
    os.kill(agent, signal.SIGSTOP)  # what it is asked for now, it will not do
    whole = {"working_dir": str(code), "min_slots": 8, "max_slots": 8}
    gang = ray.submit("sh", "-c", "echo $GEMINID_NODE_RANK of $GEMINID_NODES", **whole)
    ray.wait_for(lambda: json.loads(ray.cluster.run(f"print(json.dumps({FREE}))") or "0") is None)  # all slots are held
    os.kill(agent, signal.SIGKILL)
    assert ray.over(gang)["phase"] == "succeeded", ray.job(gang)
    said = {line.partition("] ")[2] or line for line in ray.run("logs", gang).stdout.splitlines() if " of " in line}
    assert said == {f"{rank} of n2,n4,n1,n3" for rank in range(4)}
    # Of a known kind, so that all workers begin together; long enough for each of them to have samples of a step.
    job = ray.counting("k", "--samples", 400, "--epochs", 4, "--max-batch", 64, "--where", kind="elastic", **whole)
    assert ray.over(job)["phase"] == "succeeded"

    def places() -> dict[str, str]:
        words = [line.partition("rank ")[2].split(" on ") for line in ray.run("logs", job).stdout.splitlines()]
        return dict(found for found in words if len(found) == 2)

    ray.wait_for(lambda: len(places()) == 8)  # what was printed on other nodes is brought here
    nodes = [node for _, node in sorted(places().items())]
    racks = (["n1", "n1", "n3", "n3"], ["n2", "n2", "n4", "n4"])
    assert nodes in (racks[0] + racks[1], racks[1] + racks[0])  # whichever of them has the leader


#: How a plain command has PyTorch run on all of its slots, whatever nodes they are on.
TORCHRUN = (
    'exec "$0" -m torch.distributed.run --nnodes $GEMINID_NODE_COUNT --node-rank $GEMINID_NODE_RANK'
    ' --nproc-per-node $GEMINID_SLOT_COUNT --master-addr $MASTER_ADDR --master-port $MASTER_PORT "$@"'
)

SUM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([10.0 ** dist.get_rank()])
dist.all_reduce(total)
print("sum", int(total))
dist.destroy_process_group()
"""


def test_a_command_on_several_nodes_meets_by_what_it_is_told_and_ends_though_it_floods_its_log(ray):
    script = ray.home / "sum.py"
    script.write_text(SUM)
    gang = ray.submit("sh", "-c", TORCHRUN, sys.executable, str(script), min_slots=4, max_slots=4)
    assert ray.over(gang)["phase"] == "succeeded", ray.run("logs", gang).stdout
    assert ray.run("logs", gang).stdout.count("sum 1111") == 4
    said = ("sh", "-c", "echo $GEMINID_ADDRESSES $MASTER_ADDR $MASTER_PORT")
    named = ray.submit(*said, min_slots=8, max_slots=8, env={"MASTER_PORT": "1234"})
    assert ray.over(named)["phase"] == "succeeded"
    told = {line for line in ray.run("logs", named).stdout.splitlines() if " 1234" in line}
    ((addresses, first, _),) = (line.split() for line in told)  # all were told the same
    assert len(set(addresses.split(","))) == 4
    assert addresses.split(",")[0] == first
    flood = ray.submit("sh", "-c", "trap '' TERM; exec yes 'a line that somebody forgot in an inner loop'")
    ray.wait_for(lambda: "are left out here" in ray.run("logs", flood, "--tail", 100_000).stdout)
    assert ray.run("cancel", flood).returncode == 0
    beside = ray.submit("true", min_slots=7, max_slots=7)  # one slot on the same node as well
    assert ray.over(beside)["phase"] == "succeeded"
    assert ray.over(flood)["phase"] == "cancelled"


def test_a_killed_raylet_costs_a_moment_and_no_sample(ray):
    job = ray.spread("b", 5, "--clock")
    victim = sorted(ray.on(job))[0]
    killed_at_s = time.time()
    ray.cluster.signal(victim, signal.SIGKILL)
    ray.until(job, lambda job: victim not in (job["placement"] or {victim}) and job["phase"] == "running")
    ray.wait_for(lambda: not [pid for pid in ray.cluster.pids(victim) if "zygote" in command_of(pid)])
    ray.cluster.kill(victim)
    ray.cluster.start_node(victim, wait=False)
    ray.finish("b", job)
    assert "from its last checkpoint" not in ray.story(job)
    took_s = ray.went_on_after_s("b", job, killed_at_s, victim, restored=False)
    print(f"the survivors made a step {took_s:.2f} s after the kill")


def test_a_job_that_loses_all_its_nodes_comes_back_from_its_checkpoint(ray):
    often = ("--every", 0.5, "--clock")
    job = ray.counting("c", "--samples", 300, "--epochs", 15, *often, min_slots=1, max_slots=1)
    ray.until(job, lambda job: job["durable_samples"] > 0)
    (victim,) = ray.on(job)
    killed_at_s = time.time()
    ray.cluster.signal(victim, signal.SIGKILL)
    ray.cluster.kill(victim)
    for local in Path(tempfile.gettempdir(), f"geminid-{os.getuid()}").glob(f"*-{victim}"):
        shutil.rmtree(local)  # whatever was on the machine is gone with it
    assert not list((ray.home / "jobs" / job).rglob("checkpoint-*"))
    assert list(ray.storage.glob(f"*/{job}/checkpoint-*"))  # written and read through fsspec
    ray.until(job, lambda job: job["phase"] == "running" and victim not in (job["placement"] or {victim}))
    ray.cluster.start_node(victim, wait=False)
    assert ray.over(job)["phase"] == "succeeded"
    assert ray.exactly_once("c", 300, 15)
    assert "from its last checkpoint" in ray.story(job)
    took_s = ray.went_on_after_s("c", job, killed_at_s, victim, restored=True)
    print(f"a step elsewhere {took_s:.2f} s after the kill")


def test_jobs_are_taken_over_by_the_next_service(ray, tmp_path):
    enough = tmp_path / "enough"
    job = ray.unhurried("d", 3)  # however long the next service takes to come up
    waiting = f"until [ -e {enough} ]; do sleep 0.2; done; echo still here"
    plain = ray.submit("sh", "-c", waiting, name="waiting")
    short = ray.unhurried("p", 1)
    ray.settled(plain, 1)
    workers, step, node = ray.worker_pids(job), ray.job(job)["step"], sorted(ray.on(job))[0]
    ray.kill()
    (ray.home / "p-enough").touch()
    stray = int(ray.cluster.run(STRAY.format(name=f"{job}/w99", node=node)))
    time.sleep(7.0)  # longer than agents go on without asking Ray whether their node still counts
    assert alive(stray)
    ray.wait_for((ray.home / "p").exists)
    slow = ray.agent(node)
    os.kill(slow, signal.SIGSTOP)  # it answers later than any that no job waits for would be waited for
    later = threading.Timer(AGENTS_S + 2.0, os.kill, (slow, signal.SIGCONT))
    later.start()
    ray.up()
    later.join()
    assert ray.until(job, lambda job: job["step"] > step)["phase"] == "running"
    assert ray.worker_pids(job) == workers
    assert ray.job(short)["phase"] == "succeeded"  # and was not run once more
    assert ray.story(short).endswith("it ended while the service was away")
    ray.wait_for(lambda: not alive(stray))  # nobody has written down that there is such a worker
    time.sleep(2.0)
    assert ray.worker_pids(job) == workers
    ray.finish("d", job)
    enough.touch()
    assert ray.over(plain)["phase"] == "succeeded"
    assert ray.run("logs", plain).stdout.strip().endswith("still here")


def test_what_others_use_is_left_to_them_and_a_hanging_worker_is_replaced(ray):
    ray.cluster.run(
        "from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On\n"
        "class Other:\n    def hello(self): return 1\n"
        "node = next(n['NodeID'] for n in ray.nodes() if n['Alive'] and n['NodeName'] == 'n3')\n"
        "options = {'name': 'other', 'lifetime': 'detached', 'num_cpus': 1, 'scheduling_strategy': On(node, False)}\n"
        "other = ray.remote(Other).options(**options)\n"
        "ray.get(other.remote().hello.remote())\n"
    )
    ray.wait_for(lambda: len(ray.nodes()["n3"]["taken"]) == 1 and not any(n["down"] for n in ray.nodes().values()))
    seven = ray.unhurried("e7", 7)
    assert len(ray.job(seven)["placement"]["n3"]) == 1
    ray.finish("e7", seven)
    slowly = ("--pause", 0.2, "--until", ray.home / "e-enough")
    job = ray.counting("e", "--samples", 400, "--epochs", 60, "--max-batch", 64, *slowly, min_slots=8, max_slots=8)
    time.sleep(1.0)
    assert ray.job(job)["phase"] == "pending"
    ray.cluster.run("ray.kill(ray.get_actor('other'))")
    ray.settled(job, 8)
    os.kill(sorted(ray.worker_pids(job))[-1], signal.SIGSTOP)
    ray.wait_for(lambda: "hung" in ray.story(job))
    ray.finish("e", job)


def test_ray_counts_the_slots_of_jobs_as_used_and_may_take_them_back(ray):
    """Ray's own view of who has what, and what happens when somebody ends what holds a slot."""
    job = ray.unhurried("j", 3)
    until_equal(lambda: json.loads(ray.cluster.run(f"print(json.dumps([{FREE}, len({SEATS})]))") or "0"), [5.0, 3])
    ray.wait_for(lambda: users_of_slots(ray) == sorted((job, pid) for pid in ray.worker_pids(job)))
    workers = ray.worker_pids(job)
    ray.cluster.run(f"ray.kill(ray.get_actor(**{SEATS}[0]))")
    ray.wait_for(lambda: "taken" in ray.story(job))
    assert sum(map(alive, workers)) == 2
    assert ray.run("set", job, "--min-slots", 1).returncode == 0
    ray.finish("j", job)
    assert "from its last checkpoint" not in ray.story(job)


def test_what_a_dying_bridge_was_asked_for_is_asked_for_again(ray):
    ray.wait_for(lambda: len(ray.nodes()) >= 4 and not any(node["down"] for node in ray.nodes().values()))
    bridge = ray.bridge()
    os.kill(bridge, signal.SIGSTOP)
    whole = {"min_slots": 8, "max_slots": 8}  # so that it needs slots that are not held yet
    jobs = [ray.submit("true", **whole)]
    time.sleep(2.0)
    told = ray.json("explain", jobs[0])
    assert told["phase"] == "pending"
    assert "it is to start on 8 slots: Ray is asked for n" in told["explanation"]
    os.kill(bridge, signal.SIGKILL)
    jobs.append(ray.submit("true", **whole))
    assert [ray.over(job)["phase"] for job in jobs] == ["succeeded", "succeeded"]
    assert ray.bridge() != bridge


def test_nodes_drained_by_either_side_are_left_alive(ray):
    job = ray.spread("f", 2)
    first = sorted(ray.on(job))[0]
    assert ray.run("drain", first).returncode == 0
    ray.until(job, lambda job: job["phase"] == "running" and first not in (job["placement"] or {first}))
    assert ray.run("drain", "--undo", first).returncode == 0
    second = sorted(ray.on(job))[0]
    ray.cluster.drain(second)
    ray.until(job, lambda job: job["phase"] == "running" and second not in (job["placement"] or {second}))
    ray.cluster.kill(second)
    ray.cluster.start_node(second, wait=False)
    ray.finish("f", job)
    assert "from its last checkpoint" not in ray.story(job), ray.story(job)


def test_gpus_are_the_ones_that_ray_gives(ray):
    ray.cluster.start_node("n5", gpus=2, labels={"ray.io/accelerator-type": "A100"})
    ray.wait_for(lambda: ray.nodes().get("n5", {}).get("gpu_type") == "a100")
    show = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 3")
    jobs = [ray.submit(*show, name=f"gpu{number}", gpu_types=["a100"]) for number in range(2)]
    assert [ray.over(job)["phase"] for job in jobs] == ["succeeded", "succeeded"]
    assert {ray.run("logs", job).stdout.strip() for job in jobs} == {"0", "1"}
    ray.cluster.kill("n5")
    ray.wait_for(lambda: ray.nodes()["n5"]["down"])


def test_a_raylet_cut_off_for_too_long_comes_back_as_a_new_node(ray):
    job = ray.spread("g", 5)
    victim = sorted(ray.on(job))[-1]
    raylet = ray.cluster.raylet(victim)
    os.kill(raylet, signal.SIGSTOP)
    ray.until(job, lambda job: job["phase"] == "running" and victim not in (job["placement"] or {victim}))
    ray.wait_for(lambda: ray.nodes()[victim]["down"])
    os.kill(raylet, signal.SIGCONT)  # it learns that it is dead, and its processes end with it
    ray.wait_for(lambda: not [pid for pid in ray.cluster.pids(victim) if "zygote" in command_of(pid)])
    ray.cluster.kill(victim)
    ray.cluster.start_node(victim, wait=False)
    ray.finish("g", job)


def test_a_restarted_head_disturbs_nobody(ray):
    job = ray.unhurried("h", 3)
    workers = ray.worker_pids(job)
    # Ray never finishes the start of an actor during which its head ends: its slot is leased again then.
    ray.wait_for(lambda: users_of_slots(ray) == sorted((job, pid) for pid in workers))
    ray.cluster.restart_head()
    later = ray.counting("i", "--samples", 50, "--epochs", 2, min_slots=5, max_slots=5)
    assert ray.over(later)["phase"] == "succeeded"
    assert ray.worker_pids(job) == workers, ray.story(job)
    assert ray.exactly_once("i", 50, 2)
    # Together with the service, and at a moment when actors of slots are being started.
    plain = ray.submit("sleep", "300", min_slots=5, max_slots=5)
    ray.until(plain, lambda job: job["phase"] == "running")
    ray.kill()
    ray.cluster.restart_head()
    ray.up()
    assert ray.worker_pids(job) & workers  # slots whose actors were not there yet are held anew
    ray.until(plain, lambda job: job["phase"] == "running")
    assert ray.run("cancel", plain).returncode == 0
    ray.finish("h", job)


@pytest.mark.slow("a minute")
def test_an_agent_that_hangs_while_there_is_no_service_is_replaced_and_operators_are_told(ray):
    job = ray.spread("n", 5)
    node = sorted(ray.on(job))[0]
    ray.kill()
    ray.stop_agent(node)
    ray.options += ["--agent-timeout", "25"]  # Ray itself gives up asking after 22 s
    ray.up()
    ray.until(job, lambda job: job["phase"] == "running" and job["slots"] > 1)
    notes = [note["text"] for note in ray.json("status")["notes"]]
    assert any(f"agent of node {node} has not answered" in text for text in notes), notes
    ray.wait_for(lambda: node in ray.nodes() and not ray.nodes()[node]["down"])  # it is back
    ray.finish("n", job)
    assert "from its last checkpoint" not in ray.story(job)


def test_a_second_service_finds_the_cluster_keeps_to_itself_and_leaves_out_nodes_of_another_version_or_none(ray):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(geminid.__file__).parent, Path(folder, "geminid"))
        init = Path(folder, "geminid", "__init__.py")
        init.write_text(init.read_text().replace(f'"{geminid.__version__}"', '"9.9.9"'))
        ray.cluster.start_node("n6", environment={"PYTHONPATH": folder})
        nothing = Path(folder, "nothing", "geminid", "__init__.py")
        nothing.parent.mkdir(parents=True)
        nothing.write_text("raise ImportError('not installed')")
        ray.cluster.start_node("n7", environment={"PYTHONPATH": str(nothing.parents[1])})
        described = Path(folder, "cluster.yaml")
        described.write_text(CLUSTER_FILE)
        other = OnRay(ray.cluster, "--storage", f"local://{ray.storage}", "--cluster", described)
        del other.options[(place := other.options.index("--address")) : place + 2]
        other.env["RAY_ADDRESS"] = ray.cluster.address
        two = {"min_slots": 2, "max_slots": 2}
        with other:
            racks = {name: (node["zone"], node["rack"]) for name, node in other.nodes().items()}
            assert racks == {"n1": ("z", "x"), "n2": ("z", "x"), "n3": ("z", "y"), "n4": ("zone-0", "a")}
            assert "z/x" in other.run("nodes", "--wide").stdout
            differs = "node n3 has 2 slots, not 4, as the cluster file of --cluster says"
            assert any(differs in note["text"] for note in other.json("status")["notes"])
            job = other.counting("o", "--samples", 400, "--epochs", 60, "--pause", 0.2, "--every", 0.5, **two)
            other.until(job, lambda job: job["durable_samples"] > 0)
            assert other.run("simulate", "--from-live", "--policy", "fifo").returncode == 0  # with the file's network
            mine = (other.home / "ray.id").read_text()
            assert mine in {path.parts[-3] for path in ray.storage.glob(f"*/{job}/checkpoint-*")}
            assert "checkpoint" not in other.story(job)  # the first service has had a job of that name, too
            assert not set(other.on(job)) & {"n6"}
            until_equal(lambda: sum(len(node["taken"]) for node in ray.nodes().values()), 2)
            for service in (ray, other):
                notes = [note["text"] for note in service.json("status")["notes"]]
                assert any("node n6 has geminid 9.9.9" in text for text in notes), notes
                assert any("node n7 is not used" in text and "not installed" in text for text in notes), notes
                assert not {"n6", "n7"} & service.nodes().keys()
        ray.cluster.kill("n6")
        ray.cluster.kill("n7")


@pytest.mark.needs_mounts
def test_a_job_goes_elsewhere_if_its_node_has_no_room_for_its_code(ray, small_file_system):
    first, *others = sorted(ray.nodes())
    room = agent_folder((ray.home / "ray.id").read_text().strip(), first) / "code"
    room.mkdir(exist_ok=True)
    small_file_system(room, "1m")
    for name in others:
        assert ray.run("drain", name).returncode == 0
    code = ray.home / "large"
    code.mkdir()
    (code / "data").write_bytes(os.urandom(3 << 20))
    job = ray.submit("sh", "-c", "ls", working_dir=str(code), name="large")
    told = f"no code could be brought to {first}: "
    ray.wait_for(lambda: any(told in note["text"] for note in ray.json("status")["notes"]))
    assert "not used for now" in ray.run("nodes").stdout
    for name in others:
        assert ray.run("drain", "--undo", name).returncode == 0
    assert ray.over(job)["phase"] == "succeeded"
    assert ray.run("logs", job).stdout.strip() == "data"
    assert len([note for note in ray.json("status")["notes"] if told in note["text"]]) == 1


def test_everything_is_given_back_at_the_end(ray):
    check_invariants(ray.home)  # after every record of all that happened above
    ray.run("down")
    ray.cluster.kill("n5")
    code = "print(json.dumps([ray.cluster_resources().get('CPU'), ray.available_resources().get('CPU')]))"
    until_equal(lambda: json.loads(ray.cluster.run(code) or "null"), [8.0, 8.0])  # nothing: Ray was busy
    left = ("n1", "n2", "n3", "n4")  # agents hold no slots, and what they started ends after them
    until_equal(
        lambda: [about(pid) for name in left for pid in ray.cluster.pids(name) if "zygote" in command_of(pid)], []
    )


def about(pid: int) -> str:
    """A process that should not be there: who it is, and who its parent."""
    with contextlib.suppress(OSError):
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ours = Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return f"{pid} ({state}: {command_of(pid)}) of {parent} ({ours}: {command_of(int(parent))})"
    return str(pid)
