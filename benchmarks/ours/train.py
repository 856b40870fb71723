"""luwu's side of the training benchmarks.

Settings: run, shape, rows, steps, warm_up, dtype, checkpoint, meta, wait (what a sample's last step waits for:
"durable" unless given).
"""

from __future__ import annotations

from kit.child import serve, settings, take_stdout
from worker import Trainer, join_server


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    with join_server(wanted) as session:
        trainer = Trainer(wanted, session)
        if wanted.get("warm_up", 2):
            trainer.timed(wanted.get("warm_up", 2))
        wait = wanted.get("wait", "durable")
        serve(replies, lambda: trainer.timed(wanted["steps"], wait), lambda: dict(session.endpoint.stats()))


if __name__ == "__main__":
    main()
