"""Flags that come from declared settings: each setting has one, with the declaration's name, type, help and default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.cli.setting_flags import Given, flag_type, flags_of, setting_flags
from luwu.control.timeouts import Timeouts
from luwu.core.quantities import AbsolutePath, Count, Size, StoreFolders
from luwu.core.settings import TOML_ONLY, Flag, Group, to_toml
from luwu.launch.settings import SampleSettings, Settings
from luwu.plan.choices import ChoiceGroups
from luwu.plan.simulation.scenario import SimulationGroups
from luwu.server.settings import ServerFile
from luwu.switch.settings import SwitchFile

COMMANDS = {"train": Settings, "server": ServerFile, "switch": SwitchFile, "plan": ChoiceGroups}


class Kitchen(Group):
    """Settings with one of each type."""

    number: Count = 3
    """a number"""
    share: float | None = None
    """a share"""
    size: Size | None = None
    """a size"""
    folders: Annotated[StoreFolders, Flag("--folder")] = ()
    """folders"""
    pairs: Annotated[dict[str, int], Flag("--pair", parse=lambda given: {word: len(word) for word in given})] = {}  # noqa: RUF012
    """pairs"""
    on: bool = True
    """on"""
    off: bool = False
    """off"""
    choice: Annotated[Literal["a", "b"], Flag(default="the usual")] = "a"
    """<choice> of two"""
    hidden: Annotated[int, TOML_ONLY] = 5
    """only in the file"""


class OneTable(Group):
    """One group with flags and one without."""

    kitchen: Kitchen = Kitchen()
    sample: Annotated[SampleSettings, TOML_ONLY] = SampleSettings()


def run_of(kind: type[Group], *words: str, **chosen: Any) -> tuple[Given, str]:
    """Run a command with the flags of these settings; return what it is given, and its help."""
    seen: list[Given] = []
    single = typer.Typer(rich_markup_mode="markdown")

    @single.command()
    @setting_flags(kind, **chosen)
    def command(own: Annotated[int, typer.Option(help="own")] = 1, *, given: Given) -> None:
        seen.append(given)

    result = CliRunner().invoke(single, list(words))
    assert result.exit_code == 0, result.output
    return seen[0], CliRunner().invoke(single, ["--help"], env={"COLUMNS": "120"}).output


def all_flags(command: str) -> list[str]:
    """Every name of every option of a command of luwu."""
    shown = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    return [name for option in shown for name in (*option.opts, *option.secondary_opts)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_has_one_flag_or_is_marked(command):
    kind = COMMANDS[command]
    declared = {(setting.group, setting.name): setting.flag.name for setting in flags_of(kind)}
    names = all_flags(command)
    assert len(names) == len(set(names))
    assert set(declared.values()) <= set(names)
    for group, table in kind.model_fields.items():
        marked = TOML_ONLY in table.metadata
        for name, field in table.annotation.model_fields.items():
            assert ((group, name) in declared) != (marked or TOML_ONLY in field.metadata), f"{group}.{name}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_explained(command):
    for option in typer.main.get_command(app).commands[command].params:  # type: ignore[attr-defined]
        assert option.help, option.name


def test_simulate_has_the_flags_of_plan_but_for_what_it_cannot_play():
    names = all_flags("simulate")
    assert len(names) == len(set(names))
    declared = {setting.flag.name for setting in flags_of(SimulationGroups)}
    assert {"--model", "--jitter"} <= declared & set(names)
    assert declared - set(names) == {
        "--machine", "--ram", "--aggregation", "--disk-size", "--endurance", "--offload", "--lora-rank",
        "--tokens", "--topology", "--prices",
    }  # fmt: skip


def test_only_given_values_arrive_each_as_its_setting_takes_it():
    assert run_of(OneTable)[0] == {"kitchen": {}}
    words = "--number 4 --size 8GiB --folder x --folder y --pair ab --pair c --no-on --off --choice b"
    given, _ = run_of(OneTable, *words.split())
    assert given == {
        "kitchen": {
            "number": 4, "size": "8GiB", "folders": (Path("x"), Path("y")), "pairs": {"ab": 2, "c": 1}, "on": False,
            "off": True, "choice": "b",
        }
    }  # fmt: skip


def test_help_comes_from_the_declaration():
    _, shown = run_of(OneTable)
    assert "a number (3)" in shown and "on (true)" in shown and "<choice> of two (the usual)" in shown
    assert "--no-on" in shown and "--no-off" in shown  # a saved setting can be taken back
    assert "--hidden" not in shown and "--length" not in shown


def test_inherited_settings_follow_a_groups_own_in_help_and_file():
    class Oven(Group):
        """Settings that two kitchens have."""

        heat: int = 180
        """heat"""

    class Sink(Group):
        """More of them."""

        depth: int = 20
        """depth"""

    class LargeKitchen(Oven, Sink):
        """A kitchen with both, and a heat of its own."""

        places: int = 4
        """places"""
        heat: int = 200
        """own heat"""

    class LargeHouse(Group):
        """One group."""

        kitchen: LargeKitchen = LargeKitchen()

    assert [setting.name for setting in flags_of(LargeHouse)] == ["places", "heat", "depth"]
    assert to_toml(LargeHouse()).split("\n") == [
        "[kitchen]", "# places", "places = 4", "# own heat", "heat = 200", "# depth", "depth = 20", ""
    ]  # fmt: skip


def test_groups_have_panels_where_there_are_several():
    class TwoTables(OneTable):
        """Two groups with flags."""

        timeouts: Timeouts = Timeouts()

    shown = run_of(TwoTables)[1]
    assert 0 < shown.index("─ kitchen ─") < shown.index("─ timeouts ─")
    assert "─ kitchen ─" not in run_of(OneTable)[1]


def test_a_command_may_go_without_a_setting():
    _, shown = run_of(OneTable, without=("number",))
    assert "--number" not in shown and "--share" in shown
    with pytest.raises(ValueError, match="expected names of settings of OneTable, found nothing"):
        setting_flags(OneTable, without=("nothing",))


def test_a_flag_of_two_settings_is_refused():
    class Twice(Group):
        """Two groups with one flag."""

        one: Kitchen = Kitchen()
        two: Kitchen = Kitchen()

    with pytest.raises(ValueError, match=r"two.number: --number is the flag of another setting"):
        setting_flags(Twice)


@pytest.mark.parametrize(
    ("annotation", "flag"),
    [
        (AbsolutePath | None, Path),
        (StoreFolders, list[Path]),
        (Size, str),
        (dict[str, str], list[str]),
        (Literal["a"] | None, str),
        (Path | None, Path),
        (Count, int),
    ],
)
def test_a_setting_has_the_type_of_its_flag(annotation, flag):
    assert flag_type(annotation) == flag


def test_a_type_that_no_flag_has_is_refused():
    with pytest.raises(TypeError, match="mark it TOML_ONLY"):
        flag_type(complex)
