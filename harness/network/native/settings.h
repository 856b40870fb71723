// Settings of the wire, as JSON.
//
//   {"a": INTERFACE, "b": INTERFACE, "mtu": 1500, "ring_bytes": N, "check_checksums": false, "control": false,
//    "a_to_b": HARM, "b_to_a": HARM}
//   HARM  {"seed": N, "rules": [RULE...]}
//   RULE  {"action": "drop" | "duplicate" | "hold" | "corrupt" | "corrupt_and_fix", "protocol": "udp" | "tcp",
//          "port": N, "matches": [{"offset": N, "width": N, "mask": N, "value": N}...], "first": N, "last": N,
//          "probability": P, "hold_frames": N, "hold_seconds": S, "bits": N}
#pragma once

#include <string>

#include "harm.h"
#include "json.h"

namespace luwu::wire {

struct Settings {
    std::string a;
    std::string b;
    std::uint64_t mtu = 1500;
    std::uint64_t ring_bytes = std::uint64_t{16} << 20;  // for each direction
    bool check_checksums = false;
    bool control = false;  // take commands from standard input, and end with it
    Harm a_to_b;
    Harm b_to_a;
};

// Both throw std::runtime_error on what they do not understand; a name that they do not know is an error, too.
Settings read_settings(const Json& json);
Harm read_harm(const Json& json);

}  // namespace luwu::wire
