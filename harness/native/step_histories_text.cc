// Events and actions of the step machine as text, and the settings that the tests use.
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "step_histories.h"

namespace luwu::test {

namespace {

constexpr std::array<std::string_view, kEventKinds> kKinds{
    "begin",      "pull",     "push",        "vote",        "decide",       "annul",   "join",
    "leave",      "lose",     "kept",        "written",     "caught_up",    "spoiled", "point_written",
    "taken_back", "recorded", "epoch_begun", "commit_soon", "make_durable", "fail",    "break_down"};

std::string name_of(std::uint32_t block) { return std::string(1, static_cast<char>('a' + block)); }

std::string names_of(const std::vector<std::uint32_t>& blocks) {
    std::string names;
    for (const std::uint32_t block : blocks) names += name_of(block);
    return names.empty() ? "-" : names;
}

std::string number(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.9g", value);
    return text.data();
}

std::string text_of(const step::Ending& ending) {
    constexpr std::array<const char*, 5> kEnds{"rolled_back", "committed", "prepared", "not_finite", "void"};
    const std::string end = kEnds[static_cast<std::size_t>(ending.end)];
    return ending.squares == step::kNoSquares ? end : end + " " + number(ending.squares);
}

// step/attempts/rolled_back counts [loss scale]
std::string text_of(const store::CommitRecord& record) {
    std::string text = std::to_string(record.step) + "/" + std::to_string(record.attempts) + "/" +
                       std::to_string(record.rolled_back) + " ";
    for (const std::uint64_t count : record.counts) text += std::to_string(count);
    if (record.loss_scale) text += " scale " + number(record.loss_scale->scale);
    return text;
}

struct ActionText {
    std::string operator()(const step::BeginPass& action) const { return "pass " + std::to_string(action.stream); }
    std::string operator()(const step::PlanKept&) const { return "plan"; }
    std::string operator()(const step::GiveBack& action) const { return "give_back " + name_of(action.block); }
    std::string operator()(const step::Keep& action) const { return "keep " + name_of(action.block); }
    std::string operator()(const step::Update& action) const {
        return (action.keeps ? "update+keep " : "update ") + name_of(action.block);
    }
    std::string operator()(const step::HurryOwed& action) const { return "hurry " + name_of(action.block); }
    std::string operator()(const step::FinishOwed&) const { return "finish_owed"; }
    std::string operator()(const step::Settle& action) const {
        return "settle " + names_of(action.blocks) + " " + number(static_cast<double>(action.scale)) +
               (action.writes ? "" : " in memory");
    }
    std::string operator()(const step::Flush& action) const { return "flush " + names_of(action.blocks); }
    std::string operator()(const step::FollowPoint&) const { return "follow"; }
    std::string operator()(const step::TakeBack& action) const { return "take_back " + names_of(action.blocks); }
    std::string operator()(const step::WriteRecord& action) const { return "record " + text_of(action.record); }
    std::string operator()(const step::BeginEpoch&) const { return "epoch"; }
    std::string operator()(const step::Answer& action) const { return "answer " + text_of(action.ending); }
    std::string operator()(const step::EndStep& action) const {
        return "end " + text_of(action.ending) + " " + names_of(action.arrivals);
    }
    std::string operator()(const step::Refuse& action) const { return "refuse " + action.text(); }
    std::string operator()(const step::Fail& action) const {
        return (action.error.kind() == ErrorKind::worker_lost ? "lost " : "fail ") + action.text();
    }
};

step::StepSettings settings_of(double rate, std::optional<double> max_norm, std::optional<double> scale) {
    step::StepSettings settings;
    settings.groups = {{rate}};
    settings.gradient.max_norm = max_norm;
    if (scale) settings.gradient.loss_scale = store::LossScale{*scale, 7};
    return settings;
}

std::uint32_t block_of(const std::string& word) {
    if (word.size() != 1) throw std::invalid_argument("no block: " + word);
    return static_cast<std::uint32_t>(word[0] - 'a');
}

}  // namespace

const step::StepSettings& step_settings(std::uint32_t number) {
    static const std::array<step::StepSettings, kStepSettings> settings{
        settings_of(0.1, {}, {}),  settings_of(0.2, {}, {}), settings_of(0.1, {}, 8),  settings_of(0.1, 1, {}),
        settings_of(0.1, 1e9, {}), settings_of(0.2, 1, {}),  settings_of(0.1, 1, 8.0), settings_of(0.1, 0, {})};
    return settings.at(number);
}

std::string text_of(const StepEvent& event) {
    std::string text(kKinds[static_cast<std::size_t>(event.kind)]);
    switch (event.kind) {
        case EventKind::begin:
            return text + " " + std::to_string(event.worker) + " " + std::string(kStepSettingsNames[event.block]);
        case EventKind::pull:
        case EventKind::push:
            return text + " " + std::to_string(event.worker) + " " + name_of(event.block);
        case EventKind::vote:
            text += " " + std::to_string(event.worker) + (event.wanted ? " back" : "");
            return event.pushes ? text + " of " + std::to_string(*event.pushes) : text;
        case EventKind::decide:
            return text + (event.wanted ? " yes " : " no ") + number(event.squares);
        case EventKind::annul:
            return text + " " + std::to_string(*event.pushes);
        case EventKind::join:
        case EventKind::leave:
        case EventKind::lose:
            return text + " " + std::to_string(event.worker);
        case EventKind::kept:
            return text + " " + name_of(event.block) + " " + number(event.squares);
        case EventKind::written:
        case EventKind::caught_up:
            return text + " " + name_of(event.block);
        default:
            return text;
    }
}

StepEvent event_of(std::string_view text) {
    std::istringstream words{std::string(text)};
    std::string word;
    words >> word;
    StepEvent event;
    std::size_t kind = 0;
    while (kind < kEventKinds && kKinds[kind] != word) ++kind;
    if (kind == kEventKinds) throw std::invalid_argument("no event: " + std::string(text));
    event.kind = static_cast<EventKind>(kind);
    const bool of_worker =
        event.kind <= EventKind::vote || (event.kind >= EventKind::join && event.kind <= EventKind::lose);
    if (of_worker) words >> event.worker;
    while (words >> word) {
        if (word == "back" || word == "yes") {
            event.wanted = true;
        } else if (word == "of") {
            words >> word;
            event.pushes = std::stoull(word);
        } else if (event.kind == EventKind::annul) {
            event.pushes = std::stoull(word);
        } else if (event.kind == EventKind::begin) {
            while (kStepSettingsNames.at(event.block) != word) ++event.block;
        } else if (event.kind == EventKind::decide || (event.kind == EventKind::kept && word.size() > 1) ||
                   (word[0] >= '0' && word[0] <= '9')) {
            if (word != "no") event.squares = std::stod(word);
        } else {
            event.block = block_of(word);
        }
    }
    return event;
}

std::string text_of(const step::Action& action) { return std::visit(ActionText{}, action); }

std::string text_of(const step::Actions& actions) {
    std::string text;
    for (const step::Action& action : actions) text += (text.empty() ? "" : "; ") + text_of(action);
    return text;
}

std::string text_of(const StepSetup& setup) {
    std::string text = std::to_string(setup.rules.workers) + " workers" +
                       (setup.rules.one_stream ? " one_stream" : "") + (setup.rules.prepares ? " prepares" : "") +
                       " commits every " + std::to_string(setup.rules.commit_points.every) + " and " +
                       std::to_string(setup.rules.commit_points.for_snapshots) +
                       (setup.rules.points_follow ? " that follow" : "") + " tail " +
                       std::to_string(setup.rules.tail.at_once) + " of " + std::to_string(setup.rules.tail.room) +
                       " blocks";
    for (const step::BlockRules& block : setup.rules.blocks) {
        text += " " + block.name + " " + std::to_string(block.chunks) + (block.trainable ? "" : " frozen");
    }
    return text + " standing " + text_of(setup.standing);
}

step::Actions happen(step::Machine& machine, const StepEvent& event) {
    switch (event.kind) {
        case EventKind::begin:
            return machine.begin(event.worker, step_settings(event.block));
        case EventKind::pull:
            return machine.pull(event.worker, event.block);
        case EventKind::push:
            return machine.push(event.worker, event.block);
        case EventKind::vote:
            return machine.vote(event.worker, event.wanted, event.pushes);
        case EventKind::decide:
            return machine.decide(event.wanted, event.squares);
        case EventKind::annul:
            return machine.annul(*event.pushes);
        case EventKind::join:
            return machine.join(event.worker);
        case EventKind::leave:
            return machine.leave(event.worker);
        case EventKind::lose:
            return machine.lose(event.worker);
        case EventKind::kept:
            return machine.kept(event.block, event.squares);
        case EventKind::written:
            return machine.written(event.block);
        case EventKind::caught_up:
            return machine.caught_up(event.block);
        case EventKind::spoiled:
            return machine.spoiled();
        case EventKind::point_written:
            return machine.point_written();
        case EventKind::taken_back:
            return machine.taken_back();
        case EventKind::recorded:
            return machine.recorded();
        case EventKind::epoch_begun:
            return machine.epoch_begun();
        case EventKind::commit_soon:
            return machine.commit_soon();
        case EventKind::make_durable:
            return machine.make_durable();
        case EventKind::fail:
            return machine.fail(Error(ErrorKind::server, "the server was closed"));
        case EventKind::break_down:
            return machine.break_down(Error(ErrorKind::io, "the disk is at fault"));
    }
    throw std::logic_error("no event");
}

}  // namespace luwu::test
