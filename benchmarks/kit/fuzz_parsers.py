"""The parsers of bytes that come from outside, by fuzz target: files, and in each the functions that parse.

None: all functions of the file. What has no target here, and why:

- Certificates and TLS records, HTTP/2 and protobuf, Parquet, and the model in a tokenizer.json: OpenSSL, gRPC, pyarrow
  and tokenizers read them. What LuWu makes of their answers has targets.
- The door (native/fabric/tcp/door.cc) passes bytes on and looks at none; the lobby looks whether there are any.
- The switch inside the kernel: tests/native/test_xdp_fuzz.cc gives it as many random packets as `make fuzz` asks for.
- Requests in memory that workers of one host share with their server: another user cannot write there.
- Netlink's and GRO's messages come from the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Parser = Mapping[str, Sequence[str] | None]

NATIVE: Mapping[str, Parser] = {
    "packet": {"native/fabric/protocol/packet.cc": None},
    "nodes": {
        "native/fabric/protocol/link.cc": ("parse", "behind_holes", "same_state", "take"),
        "native/fabric/protocol/windows.cc": None,
        "native/fabric/protocol/worker_node.cc": (
            "receive", "fits", "take_parameters", "take_agreed", "take_heartbeat", "enter_epoch",
        ),
        "native/fabric/protocol/server_node.cc": (
            "receive", "take_heartbeat", "take_request", "take_exponents", "agree_on_exponents", "start_collection",
            "take_gradient", "finish_collections",
        ),
        "native/switch/switch_node.cc": (
            "receive", "from_parent", "take_parents_heartbeat", "from_child", "pass_up", "send_waiting", "merge_holes",
        ),
        "native/switch/slots.cc": None,
    },
    "hello": {"native/fabric/tcp/frames.cc": ("decode_hello", "name_of")},
    "frames": {"native/fabric/tcp/frames.cc": ("decode_frame", "known", "read_header", "read_payload")},
    "session": {
        "native/fabric/tcp/tcp_session.cc": (
            "serve", "next_request", "serve_pull", "serve_push", "serve_initialise", "receive", "tell_failure",
        ),
    },
    "answers": {"native/fabric/tcp/tcp_lane.cc": ("dial", "exchange", "place_of", "take_failure", "answered", "lost")},
    "commit_record": {
        "native/store/records.cc": (
            "decode_commit", "encode_commit", "records_say_no_values", "counts_offset", "scale_offset",
            "commit_payload_bytes", "commit_slot_bytes",
        ),
    },
    "chunk_header": {"native/store/records.cc": ("load_chunk_header",)},
    "store": {
        "native/store/records.cc": ("valid", "seal", "crc_of"),
        "native/store/commit_file.cc": ("read", "newer", "offset_of"),
        "native/store/commit_files.cc": ("read", "none_valid", "all_missing", "is_older"),
        "native/store/stripe_files.cc": ("open", "open_checked", "check", "require"),
        "native/store/chunk_store.cc": ("open", "note"),
        "native/store/chunk_records.cc": ("check_header", "any_written", "damaged"),
        "native/store/chunk_versions.cc": ("stand_at",),
        "native/store/reader.cc": None,
    },
    "lock_file": {"native/store/lock_file.cc": ("owner_of", "take_lock", "lock_store", "open_lock")},
    "snapshot_names": {
        "native/store/snapshots.cc": (
            "step_of", "is_passing_name", "names_in", "snapshot_steps", "require_snapshot", "remove_remains",
        ),
    },
    "address": {"native/fabric/core/address.cc": None},
    "standby": {"native/standby/receiver_session.cc": None, "native/standby/applier.cc": ("apply", "write", "checked")},
    "standby_link": {
        "native/standby/link.cc": None,
        "native/standby/sender.cc": ("connect", "take", "lost", "look_at_standing", "is_behind", "refuse"),
        "native/standby/standing.cc": ("decode_standing", "same_counts"),
    },
}  # fmt: skip

PYTHON: Mapping[str, Parser] = {
    "manifest": {
        "src/luwu/core/manifest.py": ("from_json", "_block_from", "_parameter_from", "_dtype_from"),
        "src/luwu/core/json_fields.py": ("read_text", "read_object", "whole", "words", "listed", "explained"),
        "src/luwu/store/sealed_json.py": ("require_unchanged", "_checksum"),
        "src/luwu/store/folders.py": ("read_identity",),
    },
    "run_record": {
        "src/luwu/store/run_record.py": ("from_json", "read_record", "_record_of", "check_claim", "claim_store"),
    },
    "origin": {
        "src/luwu/store/origin.py": ("read_origin", "_digits"),
        "src/luwu/core/json_fields.py": ("table",),
    },
    "standby_record": {
        "src/luwu/store/standby_record.py": (
            "read_standby", "require_own", "require_alone", "has_taken_over_from", "write_standby",
        ),
        "src/luwu/core/json_fields.py": ("flag",),
    },
    "journal": {"src/luwu/store/outputs.py": ("__init__", "finished", "notes", "_is_journal", "_differences")},
    "safetensors_file": {"src/luwu/store/safetensors_file.py": None},
    "checkpoint_index": {"src/luwu/store/checkpoint.py": ("__init__", "_open_shards", "_read_index")},
    "dcp": {
        "src/luwu/store/dcp_source.py": (
            "_described", "_saved_tensor", "_has_room", "_overlap", "read_range",
        ),
        "src/luwu/store/dcp_tensor.py": None,
    },
    "control": {
        "src/luwu/server/network_service.py": None,
        "src/luwu/server/service.py": None,
        "src/luwu/server/grpc_carrier.py": None,
        "src/luwu/server/gate.py": ("challenge", "check", "_seal", "_is_open", "_use", "_refusal"),
        "src/luwu/server/participants.py": ("on_one_line", "find"),
    },
    "control_answers": {
        "src/luwu/control/client.py": (
            "join", "call", "start", "finish", "_hello", "_watch", "_end", "_translated", "_reason",
        ),
        "src/luwu/control/rpc.py": ("error_from",),
        "src/luwu/control/wiring.py": ("make_wiring",),
        "src/luwu/session/remote_server.py": ("join", "standing", "has_store", "place", "_take"),
        "src/luwu/session/remote_endpoint.py": ("begin", "wait", "_decide", "_finish"),
    },
    "local_frames": {
        "src/luwu/control/frames.py": (
            "receive", "_receive", "_receive_frame", "decode", "reply_of", "failure_of", "send",
        ),
        "src/luwu/server/socket_carrier.py": ("serve_calls", "answer_call", "_next_call"),
        "src/luwu/server/local_service.py": ("JoinWorker", "Standing", "attach", "Leave", "worker_of"),
    },
    "link": {
        "src/luwu/probe/link.py": (
            "measure_link", "_answer_seconds", "_rate", "_carry", "receive_all", "_receive", "answer", "send_for",
        ),
    },
    "host_port": {"src/luwu/control/address.py": ("parse_host_port", "parse_url", "parse_urls")},
    "settings": {
        "src/luwu/core/settings.py": ("read_toml", "build", "_config_error", "_line_of"),
        "src/luwu/launch/settings.py": ("build_settings",),
    },
    "last_attempts": {
        "src/luwu/launch/last_attempts.py": ("read_last_attempts", "_read", "is_record"),
        "src/luwu/observe/metrics.py": ("resume", "read_metrics", "_read_rows", "row_of", "_line"),
        "src/luwu/observe/unreported.py": None,
    },
    "job": {"src/luwu/launch/job.py": ("read",)},
    "worker_words": {
        "src/luwu/launch/words.py": None,
        "src/luwu/launch/reports.py": ("room_wait", "reported_error"),
    },
    "model_config": {
        "src/luwu/models/config_file.py": None,
        "src/luwu/models/config_shape.py": None,
        "src/luwu/models/sizes.py": ("check_config", "check_sizes"),
        "src/luwu/plan/model_presets.py": ("read_config",),
        "src/luwu/launch/rates.py": ("_width_of",),
        "src/luwu/store/upkeep.py": ("_architectures",),
        "src/luwu/store/model_files.py": ("write_config",),
    },
    "documents": {
        "src/luwu/data/documents.py": (
            "read_documents", "count_documents", "_text", "_jsonl", "_line_text", "_listed", "_kind",
        ),
    },
    "tokenizer_file": {
        "src/luwu/data/tokenizer.py": ("__init__", "_find_end", "_special", "count_tokens", "_configured_end"),
    },
    "corpus_notes": {
        "src/luwu/data/corpus.py": ("load", "_checked", "check_length", "check_model", "verify", "verify_if_touched"),
        "src/luwu/data/writer.py": ("_read_notes", "_are_whole"),
    },
}  # fmt: skip

_CHANGING = "the file changes, or its disk fails, between two looks at it"
_MEMORY = "memory runs out"
_NEVER = "cannot happen, or belongs to the class that it must be"
_TIME = "time passes, or another thread acts at that moment"
_OTHER_USER = "the folder is another user's"
_OTHER_PORT = "another program's port; tests/unit/test_network_ports.py has one"

UNREACHED: Mapping[str, Mapping[str, str]] = {
    "native/fabric/tcp/tcp_session.cc": {
        "if (place) member_.buffers.free(*place);": _TIME,
        "if (failed_) return;": _TIME,
        "channel_.wait_for_bell();": _TIME,
    },
    "native/standby/receiver_session.cc": {"FrameKind::alive, 0": _TIME, "spoke = now;": _TIME},
    "native/standby/link.cc": {"FrameKind::alive, 0": _TIME, "spoke = now;": _TIME},
    "native/store/lock_file.cc": {
        "cannot replace ": _OTHER_USER,
        "which a copy with hard links has": _OTHER_USER,
        "permission there or use another folder": _OTHER_USER,
        "} else {": _OTHER_USER,
        "return result;": _OTHER_USER,
    },
    "src/luwu/store/outputs.py": {
        "except OSError as error:": _CHANGING,
        'raise refused("read", path, error) from error': _CHANGING,
    },
    "src/luwu/store/safetensors_file.py": {
        "except OSError as error:": _CHANGING,
        "raise _unreadable(": _CHANGING,
        'return CheckpointError(f"{path}: cannot be read: {error.strerror}': _CHANGING,
    },
    "src/luwu/store/dcp_tensor.py": {
        "except OSError as error:": _CHANGING,
        'raise self._damaged(f"ended at byte {offset}")': _CHANGING,
        "raise self._damaged(str(error.strerror)) from error": _CHANGING,
        "return True": _NEVER,
    },
    "src/luwu/server/grpc_carrier.py": {
        "except MemoryError:": _MEMORY,
        "the server has no memory left": _MEMORY,
        'raise AssertionError("abort raises")': _NEVER,
    },
    "src/luwu/server/socket_carrier.py": {
        "except MemoryError:": _MEMORY,
        "the server has no memory left": _MEMORY,
    },
    "src/luwu/server/gate.py": {"self._used.popitem(last=False)": _TIME},
    "src/luwu/probe/link.py": {"the other end does not stop sending": _TIME},
    "src/luwu/control/client.py": {
        "did not let this participant watch": _TIME,
        "raise self._error": _TIME,
        "raise self._again(self._error)": _TIME,
        "return self._again(self._error)": _TIME,
        "continue": _TIME,
        'raise self._again(self._error or ServerError("the session was closed during a call"))': _TIME,
        "refusals, refused_at = refusals + 1": _OTHER_PORT,
        "raise self._misunderstood(error) from None": _OTHER_PORT,
        "except Exception as broken:": _NEVER,
        "sent could not be used": _NEVER,
    },
    "src/luwu/session/remote_endpoint.py": {
        "request.loss_scale.CopyFrom": "sends, and reads nothing",
        "return self._data.wait(handle)": "sends, and reads nothing",
        "self._data.wait(push)": "sends, and reads nothing",
    },
    "src/luwu/data/documents.py": {"yield from _parquet(file, field)": "Parquet, see above"},
}
"""Beginnings of statements that bytes cannot reach, by file, each with the reason."""
