"""A worker's job.json: refused by its name, or a job that is read again as it was written."""

from __future__ import annotations

import json

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import ConfigError
from luwu.launch.job import Job, ServerAccess
from luwu.launch.settings import build_settings

SERVER = ServerAccess(url="luwu://a:7070", key_file="key", tls=("a", "b", "c"), plain_data=True)
JOB = json.loads(
    Job(settings=build_settings({}), folder="/run", socket_path="s", launcher_pid=7, server=SERVER).model_dump_json()
)


def test_one_input(data: bytes) -> None:
    given = Input(data)
    path = scratch() / "job.json"
    how = given.number()
    put(path, edited(JOB, given), how)
    job = allowing(ConfigError, lambda: Job.read(path))
    if job is None:
        return
    assert job.stop_path.name == "stop" and job.launcher_pid > 0, "a job has a folder and a launcher"
    again = path.with_name("again.json")
    job.write(again)
    assert repr(Job.read(again)) == repr(job), "a job is read as it was written"
