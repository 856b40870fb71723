"""The step machine's rules of an attempt's last word, which one server of several waits for: docs/decisions/0039."""

from __future__ import annotations

from kit.step_removal import Removal

LAST_WORD = (
    Removal(
        "a server that is alone makes no attempt void because of another", "machine.cc",
        "if (state_.failed() || !state_.rules.prepares || ended", "if (state_.failed() || ended",
    ),
    Removal(
        "a last word is of the attempt that it names", "machine.cc",
        " || ended != state_.progress.ended()) return take();", ") return take();",
    ),
    Removal(
        "a prepared attempt can be void elsewhere", "machine.cc",
        "state_.stage == Stage::closing || state_.stage == Stage::prepared) {", "state_.stage == Stage::closing) {",
    ),
    Removal(
        "so can one that is being prepared", "machine.cc",
        "(state_.stage == Stage::closing || state_.stage == Stage::prepared) {", "(state_.stage == Stage::prepared) {",
    ),
    Removal(
        "one server of several waits for the last word on a step that it rolls back", "machine_end.cc",
        "const bool asks = state_.rules.prepares && !decided &&", "const bool asks = false &&",
    ),
    Removal(
        "a void attempt waits for none", "machine_end.cc", "!decided && state_.verdict != Verdict::lost;", "!decided;",
    ),
    Removal(
        "a run fails where nobody is left who has the last word", "machine_end.cc",
        "if (state_.failed() || state_.stage != Stage::prepared || !state_.members.all_absent()) return;", "return;",
    ),
)  # fmt: skip
