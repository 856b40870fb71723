"""A fork of the warm process is the program that the interpreter would have started."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from harness.warm import ADDRESS, serve_warm, start_program

ABOUT = """
import json, os, sys
print(json.dumps({
    "name": __name__, "arguments": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ),
    "leads": os.getsid(0) == os.getpid(), "parent": os.getppid(), "first": sys.path[0],
    "harness": "harness" in sys.modules, "main": sys.modules["__main__"].__dict__ is globals(),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
}))
"""


@pytest.fixture(params=["warm", "cold"], scope="module")
def how(request):
    """Each program of this file does the same as a fork and as the interpreter starts it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cold":
            patch.delenv(ADDRESS, raising=False)
            yield request.param
        else:
            with serve_warm(["json"]) as address:
                patch.setenv(ADDRESS, address)
                yield request.param


@pytest.fixture
def run(how, tmp_path):
    """Run a program; return its exit status, output and errors."""

    def run(code, *arguments, **settings):
        (tmp_path / "program.py").write_text(textwrap.dedent(code))
        command = [sys.executable, str(tmp_path / "program.py"), *arguments]
        process = start_program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    return run


def test_it_has_its_arguments_folder_environment_and_session(how, run, tmp_path):
    environment = {"PYTHONPATH": str(tmp_path / "modules"), "WORD": "given"}
    status, output, _ = run(ABOUT, "one", "two", cwd=tmp_path, env=environment, start_new_session=True)
    about = json.loads(output)
    assert status == 0
    assert (about["parent"] == os.getpid()) == (how == "cold")
    assert about["arguments"] == [str(tmp_path / "program.py"), "one", "two"]
    assert about["folder"] == about["first"] == str(tmp_path)
    assert {name: about["environment"].get(name) for name in environment} == environment
    assert "PATH" not in about["environment"]
    assert about["name"] == "__main__" and about["main"] and about["leads"] and not about["harness"]


def test_it_has_the_descriptors_that_it_is_given_and_no_others(run):
    reading, writing = os.pipe()
    try:
        _, output, _ = run(f"import os\nos.write({writing}, b'here')\n{ABOUT}", pass_fds=[writing])
        assert os.read(reading, 10) == b"here"
    finally:
        os.close(reading)
        os.close(writing)
    listing = 3 if writing != 3 else 4  # the folder that lists them
    assert set(json.loads(output)["descriptors"]) <= {0, 1, 2, writing, listing}


def test_it_finds_modules_where_its_environment_says(run, tmp_path):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "of_this_test.py").write_text("WORD = 'found'")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "modules")}
    assert run("import of_this_test\nprint(of_this_test.WORD)", env=environment)[:2] == (0, "found\n")


def test_a_module_runs_as_main(how, tmp_path):
    (tmp_path / "of_this_test.py").write_text("import sys\nprint(__name__, sys.argv[1:])")
    process = start_program(
        [sys.executable, "-m", "of_this_test", "one"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.communicate(timeout=60)[0] == "__main__ ['one']\n"


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('a reason')", 1, "a reason\n"),
        ("raise ValueError('a reason')", 1, "ValueError: a reason\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_it_ends_as_the_program_ends(run, code, status, error):
    found, _, errors = run(code)
    assert (found, errors[-len(error) :] if error else errors) == (status, error)


def test_threads_and_what_is_to_run_at_the_end_are_waited_for(run):
    status, output, _ = run(
        """
        import atexit, threading
        atexit.register(print, "at the end")
        def work(): end.wait(); print("from a thread")
        end = threading.Event()
        threading.Thread(target=work).start()
        threading.Timer(0, end.set).start()
        """
    )
    assert (status, output) == (0, "from a thread\nat the end\n")


def test_it_is_waited_for_polled_and_killed_as_any_process(how, tmp_path):
    (tmp_path / "program.py").write_text("print('there', flush=True)\nimport signal\nsignal.pause()")
    process = start_program([sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "there\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()


def test_a_sitecustomize_is_imported_first(run, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('first')")
    assert run("print('then')", env=os.environ | {"PYTHONPATH": str(tmp_path / "site")})[1] == "first\nthen\n"


CHILD = """
import os, sys
print(sys.argv[1], os.getppid(), os.getpid(), end="")
sys.exit(5)
"""
STARTS_TWO = """
import subprocess, sys
for word in ("first", "second"):
    process = subprocess.Popen([sys.executable, "-m", "child", word], stdout=subprocess.PIPE, text=True)
    print(process.communicate()[0], process.pid, process.returncode, flush=True)
"""


@pytest.mark.parametrize("standbys", [0, 1, 3])
def test_the_first_children_are_its_own(how, tmp_path, standbys):
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "program.py").write_text(STARTS_TWO)
    process = start_program(
        [sys.executable, str(tmp_path / "program.py")],
        standbys, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    lines = [line.split() for line in process.communicate(timeout=60)[0].splitlines()]
    assert [line[0] for line in lines] == ["first", "second"]
    for _, parent, own, pid, status in lines:
        assert (int(parent), own, status) == (process.pid, pid, "5")


def test_a_program_goes_on_after_the_warm_process_and_its_status_is_lost(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text("print('there', flush=True)\ninput()\nprint('still there')")
    with serve_warm([]) as address:
        monkeypatch.setenv(ADDRESS, address)
        process = start_program(
            [sys.executable, str(tmp_path / "program.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "there\n"
    assert process.poll() is None
    assert process.communicate("\n", timeout=60)[0] == "still there\n"
    assert process.wait(60) == -signal.SIGKILL


# Not signal.pause(): a signal may come after the interpreter has looked for one and before the call begins.
PAUSES = "import os, time\nprint(os.getppid(), flush=True)\nwhile True:\n    time.sleep(0.05)"


def pausing(tmp_path, **settings):
    """Start a program that waits for a signal; return it and its parent."""
    (tmp_path / "program.py").write_text(PAUSES)
    command = [sys.executable, str(tmp_path / "program.py")]
    process = start_program(command, stdout=subprocess.PIPE, text=True, **settings)
    return process, int(process.stdout.readline())


def test_nothing_that_clients_do_ends_the_warm_process(tmp_path, monkeypatch, interrupt_handler):
    """One sends what is no request, one goes away without an answer; and the terminal's Ctrl-C is for programs."""
    with serve_warm([]) as address:
        monkeypatch.setenv(ADDRESS, address)
        process, warm = pausing(tmp_path)
        for words in (b"nonsense", b"{}", b"[1]"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(address)
                client.send(words)
        os.kill(warm, signal.SIGINT)
        other, parent = pausing(tmp_path)
        assert parent == warm and process.poll() is None
        other.send_signal(signal.SIGINT)
        assert other.wait(60) == -signal.SIGINT
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        for each in (process, other):
            each.stdout.close()


def test_it_leads_its_session_when_it_was_started(how, tmp_path):
    (tmp_path / "program.py").write_text(PAUSES)
    for _ in range(20):
        command = [sys.executable, str(tmp_path / "program.py")]
        with start_program(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL


def test_it_has_the_hash_seed_of_its_environment_and_what_is_to_run_before_it(run):
    seeds = [run("print(hash('a'))", env=os.environ | {"PYTHONHASHSEED": seed})[1] for seed in ("1", "1", "2")]
    assert seeds[0] == seeds[1] != seeds[2]
    assert run("print('never')", preexec_fn=lambda: os._exit(9))[:2] == (9, "")


def test_its_children_to_be_hold_none_of_its_descriptors(how, tmp_path):
    """The end of a pipe comes when the program closes it."""
    reading, writing = os.pipe()
    (tmp_path / "program.py").write_text(f"import os\nos.close({writing})\ninput()")
    command = [sys.executable, str(tmp_path / "program.py")]
    with start_program(command, 2, stdin=subprocess.PIPE, pass_fds=[writing]) as process:
        os.close(writing)
        assert select.select([reading], [], [], 60)[0] and os.read(reading, 1) == b""
        os.close(reading)
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(60) == 0
