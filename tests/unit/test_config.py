from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from luwu.core.quantities import format_size, parse_size
from luwu.core.settings import Group, build, default_text, describe, read_toml, to_toml
from luwu.errors import ConfigError
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, build_settings, check_resume
from luwu.optim.settings import OptimizerSettings
from luwu.server.settings import ServerFile
from luwu.store.folders import make_folder, read_identity
from luwu.switch.settings import SwitchFile


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5kib", 1536),
        ("2GB", 2 * 10**9),
        (100, 100),
        ("7B", 7),
    ],
)
def test_sizes_have_units(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "8", "2000000000", "GiB", "8 pounds", "-1", "1e9", None, True])
def test_sizes_without_meaning_are_refused(text):
    with pytest.raises(ConfigError, match="expected a size with its unit, such as 8GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["9" * 400 + "GiB", "9" * 5000 + "B", "99999999999TiB", "8388608TiB", f"{2**63}B", 2**63, 10**4000]
)
def test_sizes_that_no_machine_can_count_are_refused(text):
    with pytest.raises(ConfigError, match="expected a size below 8388608TiB, found") as refusal:
        parse_size(text)
    assert len(str(refusal.value)) < 200


def test_the_largest_size_is_read_exactly():
    assert parse_size(f"{2**63 - 1}B") == 2**63 - 1


@pytest.mark.parametrize("count", [1, 1023, 1536, 2**30, 3 * 2**40])
def test_sizes_come_back(count):
    assert parse_size(format_size(count)) == count


def test_overlays_win_in_order():
    settings = build_settings({"model": {"layers": 2, "hidden": 64}}, {"model": {"layers": 3}})
    assert (settings.model.layers, settings.model.hidden) == (3, 64)


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        (
            {"model": {"hidden": 100, "heads": 8}},
            ["model.hidden", "multiple of model.heads (8)", "found 100", "set hidden"],
        ),
        ({"model": {"seq": 1}}, ["model.seq", "at least 2", "found 1"]),
        ({"model": {"layers": 0}}, ["model.layers", "found 0"]),
        ({"model": {"layers": "many"}}, ["model.layers", "found 'many'"]),
        ({"model": {"depth": 2}}, ["model.depth", "no such setting", "layers"]),
        ({"modle": {"layers": 2}}, ["modle", "no such setting", "model"]),
        ({"model": 3}, ["model", "table of settings", "found 3"]),
        ({"run": {"workers": 0}}, ["run.workers", "found 0"]),
        ({"run": {"workers": 9, "batch": 8}}, ["run.workers", "at most run.batch (8)", "found 9"]),
        ({"run": {"steps": 0}}, ["run.steps", "found 0"]),
        ({"run": {"memory": "lots"}}, ["run.memory", "8GiB", "'lots'"]),
        ({"run": {"dtype": "float64"}}, ["run.dtype", "'float32', 'bfloat16' or 'float16'", "found 'float64'"]),
        ({"run": {"block_dtypes": {"h.*": "half"}}}, ["run.block_dtypes.h.*", "'bfloat16' or", "found 'half'"]),
        ({"run": {"block_dtypes": "float16"}}, ["run.block_dtypes", "found 'float16'"]),
        (
            {"run": {"block_dtypes": {"[": "float32"}}},
            ["run.block_dtypes: expected", "every [ to have its ]", "found '['"],
        ),
        ({"run": {"block_dtypes": {"": "float32"}}}, ["run.block_dtypes", "found ''"]),
        ({"model": {"path": "m"}, "run": {"block_dtypes": {"h.[0": "float32"}}}, ["run.block_dtypes", "found 'h.[0'"]),
        (
            {"run": {"block_dtypes": {"blocks.4": "float32"}}},
            [
                "run.block_dtypes",
                "'blocks.4' matches no block",
                "<root>, tokens, positions, norm, blocks.0 to blocks.3",
            ],
        ),
        (
            {"run": {"block_dtypes": {"blocks.0.attention": "float32"}}},
            ["run.block_dtypes", "matches blocks.0.attention inside block blocks.0; a block has one dtype"],
        ),
        (
            {"run": {"block_dtypes": {"*norm": "float32"}}},
            ["run.block_dtypes: '*norm' matches blocks.0.attention_norm inside block blocks.0"],
        ),
        ({"run": {"device": "tpu"}}, ["run.device", "found 'tpu'"]),
        ({"optimizer": {"lr": 0.0}}, ["optimizer.lr", "found 0.0"]),
        ({"data": {"validation_fraction": 0.9}}, ["data.validation_fraction", "found 0.9"]),
        ({"model": {"layers": 10**9}}, ["model.layers", "at most 100000", "found 1000000000"]),
        ({"model": {"hidden": 10**9, "heads": 1}}, ["model.hidden", "at most", "found 1000000000"]),
        (
            {"model": {"layers": 100_000, "hidden": 2**20}},
            ["model.layers", "at most 1 of this hidden", "found 100000", "fewer layers or a smaller hidden"],
        ),
        (
            {"run": {"batch": 999999999999999999999}},
            ["run.batch", "at most", "found 999999999999999999999"],
        ),
        ({"run": {"snapshot_every": 10**23}}, ["run.snapshot_every", "at most", f"found {10**23}"]),
        ({"run": {"memory": "9" * 400 + "GiB"}}, ["run.memory", "below 8388608TiB"]),
        ({"run": {"steps": 10**4000}}, ["run.steps", "found 1000", "..."]),
        ({"run": {"disk_full_wait_seconds": 1e9}}, ["run.disk_full_wait_seconds", "at most 100000000"]),
        ({"optimizer": {"lr": math.inf}}, ["optimizer.lr", "finite number", "found inf"]),
        ({"optimizer": {"weight_decay": math.inf}}, ["optimizer.weight_decay", "finite number", "found inf"]),
        ({"optimizer": {"lr": 1e300}}, ["optimizer.lr", "at most", "found 1e+300"]),
    ],
)
def test_bad_settings_say_where_what_and_why(overlay, words):
    with pytest.raises(ConfigError) as refusal:
        build_settings(overlay)
    for word in words:
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


def numbers_of(kind: type[Group]) -> list[tuple[type[Group], str]]:
    """The settings of a group, and of those inside it, that are numbers."""
    found = [
        (kind, name)
        for name, schema in kind.model_json_schema()["properties"].items()
        if {"integer", "number"} & {each.get("type") for each in schema.get("anyOf", [schema])}
    ]
    groups = [field.annotation for field in kind.model_fields.values()]
    inside = [group for group in groups if isinstance(group, type) and issubclass(group, Group)]
    return found + [number for group in inside for number in numbers_of(group)]


@pytest.mark.parametrize(
    ("kind", "name"),
    dict.fromkeys(number for kind in (Settings, ServerFile, SwitchFile) for number in numbers_of(kind)),
)
def test_every_number_has_bounds(kind, name):
    for value in (math.inf, math.nan, 10**31, 1e200):
        with pytest.raises(ValidationError) as refusal:
            kind.model_validate({name: value})
        assert (name,) in [mistake["loc"] for mistake in refusal.value.errors()]


@pytest.mark.parametrize("change", [{"workers": 10**12}, {"optimizer_threads": 10**9}, {"memory": "99999999999TiB"}])
def test_a_server_has_the_same_bounds(change):
    with pytest.raises(ConfigError, match=rf"^server\.{next(iter(change))}: expected "):
        build(ServerFile, {"server": {"stores": ["s"], "workers": 1} | change})


@pytest.mark.parametrize("pattern", ["<root>", "*", "blocks.[01]", "blocks.?", "[bt]*", "[]n]orm", "norm"])
def test_patterns_that_match_a_block_of_the_gpt_are_taken(pattern):
    assert build_settings({"run": {"block_dtypes": {pattern: "float32"}}}).run.block_dtypes == {pattern: "float32"}


def test_saved_settings_come_back(tmp_path):
    awkward = tmp_path / 'quote " backslash \\ ünïcode\x01'
    settings = build_settings(
        {
            "model": {"path": awkward},
            "data": {"path": awkward},
            "run": {"stores": [tmp_path / "a", tmp_path / "b"], "memory": "3GiB", "checkpoint": False}
            | {"block_dtypes": {"blocks.[01]": "float32", "<root>": "float16", 'a "b"': "bfloat16"}},
            "optimizer": {"lr": 1e-7},
        }
    )
    path = tmp_path / "config.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    assert 'memory = "3GiB"' in path.read_text(encoding="utf-8")
    assert build_settings(read_toml(path)) == settings


def test_a_mistake_in_toml_is_shown(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("[run]\nsteps = 3\n\tmemory = fast\n")
    with pytest.raises(ConfigError) as refusal:
        read_toml(path)
    message, line, mark = str(refusal.value).splitlines()
    assert message.startswith(f"settings file {path}: expected TOML, found a mistake: ")
    assert line == "   memory = fast"
    assert line[mark.index("^") :] == "fast"


@pytest.mark.parametrize("content", [b"steps = [1,\n", b"\xff = 1\n"])
def test_a_mistake_without_a_place_is_named(tmp_path, content):
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="expected TOML"):
        read_toml(path)


def test_every_setting_is_described_in_the_saved_file():
    text = to_toml(Settings())
    for group, values in Settings():
        for name, _ in values:
            assert describe(group, name, Settings)
            assert f"# {describe(group, name, Settings)}" in text


def test_blocks_stay_on_a_device_alone():
    assert build_settings({"run": {"device": "cuda", "device_memory": "8GiB"}}).run.device_memory == 8 << 30
    with pytest.raises(ConfigError, match=r"^run\.device_memory: expected none with run.device = cpu, found 8GiB"):
        build_settings({"run": {"device_memory": "8GiB"}})


NAMES = [
    pytest.param(os.fsdecode(b"a\xff"), "in UTF-8", id="bytes"),
    pytest.param("a\0b", "without a zero byte", id="zero"),
    pytest.param("~nobody-has-this-name/a", "a home folder that exists", id="home"),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
@pytest.mark.parametrize(
    ("group", "setting"),
    [("data", "path"), ("data", "tokenizer"), ("model", "path"), ("run", "offload"), ("run", "stores")],
)
def test_names_that_cannot_be_written_down_are_refused(group, setting, name, expected):
    with pytest.raises(ConfigError, match=f"^{group}.{setting}: expected .*{expected}, found") as refusal:
        build_settings({group: {setting: [Path(name)] if setting == "stores" else Path(name)}})
    assert str(refusal.value).isprintable()


def test_an_empty_path_is_not_the_present_folder():
    with pytest.raises(ConfigError, match=r"^run\.stores: expected a path, found an empty text"):
        build_settings({"run": {"stores": [""]}})


@pytest.mark.parametrize(("name", "expected"), NAMES[:2])
@pytest.mark.parametrize("use", [RunFolder, make_folder, read_identity])
def test_folders_with_such_names_are_refused(tmp_path, use, name, expected):
    with pytest.raises(ConfigError, match=f"expected .*{expected}, found") as refusal:
        use(tmp_path / name)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("again", ["w", "other/../w", "link"])
@pytest.mark.parametrize(
    ("group", "make"),
    [
        ("run", lambda stores: build_settings({"run": {"stores": stores}})),
        ("server", lambda stores: build(ServerFile, {"server": {"stores": stores, "workers": 1}})),
    ],
)
def test_a_folder_that_is_named_twice_is_refused(monkeypatch, tmp_path, again, group, make):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").mkdir()
    (tmp_path / "link").symlink_to("w")
    make(["w", "v"])
    with pytest.raises(ConfigError, match=rf"^{group}\.stores: expected each folder once, found .*/{again} .* twice"):
        make(["w", "v", again])


def test_relative_paths_are_settled_at_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = build_settings({"data": {"path": "text"}, "run": {"stores": ["one"]}})
    assert settings.data.path == str(tmp_path / "text")
    assert settings.run.stores == (str(tmp_path / "one"),)


@pytest.mark.parametrize(
    "content",
    [
        b"layers = ",
        b"\xff\xfe",
        pytest.param(b"steps = " + b"9" * 5000, id="digits"),
        pytest.param(b"stores = " + b"[" * 5000, id="lists"),
        pytest.param(b"stores = " + b"{a=" * 5000, id="tables"),
        b"day = 2000-02-31",
    ],
)
def test_files_that_are_not_toml_are_refused(tmp_path, content):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="expected TOML"):
        read_toml(path)


@pytest.mark.parametrize("text", ["run" + ".a" * 5000 + " = 1", "[run.steps" + ".a" * 5000 + "]\nb = 1"])
def test_deep_tables_are_refused(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"^run\.(a|steps): ") as refusal:
        build_settings(read_toml(path))
    assert len(str(refusal.value)) < 1000


def test_missing_settings_file():
    with pytest.raises(ConfigError, match="No such file"):
        read_toml(Path("/nowhere/config.toml"))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model": {"layers": 5}}, "model.layers"),
        ({"data": {"path": "/other"}}, "data.path"),
        ({"run": {"seed": 1}}, "run.seed"),
        ({"run": {"batch": 32}}, "run.batch"),
        ({"run": {"dtype": "bfloat16"}}, "run.dtype"),
        ({"run": {"block_dtypes": {"<root>": "bfloat16"}}}, "run.block_dtypes"),
        ({"run": {"stores": ["/elsewhere"]}}, "run.stores"),
    ],
)
def test_resuming_keeps_what_decides_the_numbers(change, name):
    with pytest.raises(ConfigError, match=rf"^{name}: the run was started with"):
        check_resume(Settings(), build_settings(change))


def test_resuming_keeps_an_average_that_the_run_chose():
    mean, median = (build_settings({"run": {"aggregate": name, "workers": 4}}) for name in ("mean", "median"))
    with pytest.raises(ConfigError, match=r"run\.aggregate: the run was started with 'median', found 'mean'"):
        check_resume(median, mean)
    check_resume(mean, median)  # a server elsewhere may have made it: its store knows


def test_resuming_may_change_the_rest():
    check_resume(
        Settings(),
        build_settings(
            {"run": {"workers": 4, "steps": 9, "memory": "1GiB", "checkpoint": False}, "optimizer": {"lr": 1e-4}}
        ),
    )


def test_learning_rate_warms_up_and_decays():
    optimizer = OptimizerSettings(lr=1.0, warmup_steps=10, final_lr_fraction=0.1)
    rates = [optimizer.rate(step, 110) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert optimizer.rate(110, 110) == pytest.approx(0.1)
    assert all(math.isfinite(OptimizerSettings(lr=1.0, warmup_steps=0).rate(step, 1)) for step in range(3))


def test_defaults_read_as_a_user_would_write_them():
    assert default_text(Settings, "run", "memory") == "8GiB"
    assert default_text(Settings, "run", "checkpoint") == "true"
    assert default_text(Settings, "data", "path") == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 3}, r"steps: belongs under \[run\], found 3 outside of tables; move it there"),
        ({"nonsense": 3}, r"nonsense: no such setting; expected tables: \[data\], \[model\]"),
        ({"run": 3}, r"run: expected a table of settings such as \[run\], found 3"),
        ({"run": {"steps": "3"}}, r"run\.steps: expected a valid integer, found '3'"),
        ({"run": {"workers": True}}, r"run\.workers: expected a valid integer, found True"),
        ({"run": {"checkpoint": "yes"}}, r"run\.checkpoint: expected a valid boolean, found 'yes'"),
        ({"optimizer": {"lr": "0.1"}}, r"optimizer\.lr: expected a valid number, found '0.1'"),
    ],
)
def test_a_value_in_another_place_or_of_another_type_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        build_settings(given)


def test_integers_are_numbers_and_lists_are_read():
    settings = build_settings({"optimizer": {"lr": 1}, "run": {"stores": ["/a", "/b"]}})
    assert (settings.optimizer.lr, settings.run.stores) == (1.0, ("/a", "/b"))
