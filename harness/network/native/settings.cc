#include "settings.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>

namespace luwu::wire {
namespace {

void allow(const Json& json, std::initializer_list<std::string_view> names) {
    for (const auto& [name, value] : json.object()) {
        if (std::ranges::find(names, name) == names.end()) throw std::runtime_error("settings: unknown name " + name);
    }
}

Action read_action(const std::string& name) {
    if (name == "drop") return Action::kDrop;
    if (name == "duplicate") return Action::kDuplicate;
    if (name == "hold") return Action::kHold;
    if (name == "corrupt") return Action::kCorrupt;
    if (name == "corrupt_and_fix") return Action::kCorruptAndFix;
    throw std::runtime_error("settings: unknown action '" + name + "'");
}

std::uint8_t read_protocol(const std::string& name) {
    if (name == "udp") return kUdp;
    if (name == "tcp") return kTcp;
    throw std::runtime_error("settings: unknown protocol '" + name + "'");
}

Match read_match(const Json& json) {
    allow(json, {"offset", "width", "mask", "value"});
    Match match;
    match.offset = json["offset"].integer(match.offset);
    match.width = json["width"].integer(match.width);
    match.mask = json["mask"].integer(match.mask);
    match.value = json["value"].integer(match.value);
    if (match.width < 1 || match.width > 8) throw std::runtime_error("settings: a match is 1 to 8 bytes wide");
    return match;
}

Rule read_rule(const Json& json) {
    allow(json, {"action", "protocol", "port", "matches", "first", "last", "probability", "hold_frames", "hold_seconds",
                 "bits"});
    Rule rule;
    rule.action = read_action(json["action"].text());
    rule.protocol = read_protocol(json["protocol"].text("udp"));
    rule.port = static_cast<std::uint16_t>(json["port"].integer(rule.port));
    for (const Json& match : json["matches"].array()) rule.matches.push_back(read_match(match));
    rule.first = json["first"].integer(rule.first);
    rule.last = json["last"].integer(rule.last);
    rule.probability = json["probability"].real(rule.probability);
    rule.hold_frames = json["hold_frames"].integer(rule.hold_frames);
    rule.hold_time = std::chrono::nanoseconds(static_cast<std::int64_t>(json["hold_seconds"].real(0) * 1e9));
    rule.bits = json["bits"].integer(rule.bits);
    if (rule.action == Action::kHold && rule.hold_frames == 0 && rule.hold_time.count() <= 0) {
        throw std::runtime_error("settings: a rule that holds needs hold_frames, hold_seconds or both");
    }
    return rule;
}

}  // namespace

Harm read_harm(const Json& json) {
    if (json.is_null()) return {};
    allow(json, {"seed", "rules"});
    std::vector<Rule> rules;
    for (const Json& rule : json["rules"].array()) rules.push_back(read_rule(rule));
    return Harm(json["seed"].integer(0), std::move(rules));
}

Settings read_settings(const Json& json) {
    allow(json, {"a", "b", "mtu", "ring_bytes", "check_checksums", "control", "a_to_b", "b_to_a"});
    Settings settings;
    settings.a = json["a"].text();
    settings.b = json["b"].text();
    settings.mtu = json["mtu"].integer(settings.mtu);
    settings.ring_bytes = json["ring_bytes"].integer(settings.ring_bytes);
    settings.check_checksums = json["check_checksums"].boolean(settings.check_checksums);
    settings.control = json["control"].boolean(settings.control);
    settings.a_to_b = read_harm(json["a_to_b"]);
    settings.b_to_a = read_harm(json["b_to_a"]);
    if (settings.mtu < 68 || settings.mtu > 65535) throw std::runtime_error("settings: an MTU is 68 to 65535 bytes");
    return settings;
}

}  // namespace luwu::wire
