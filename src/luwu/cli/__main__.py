"""`python -m luwu.cli`, where the `luwu` script is not on the path."""

from luwu.cli.main import app

app()
