#include "step_histories_author.h"

#include <limits>

namespace luwu::test {

using step::Standing;

std::uint64_t Dice::roll() {  // SplitMix64
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31U);
}

StepSetup step_setup(std::uint32_t workers, std::uint32_t blocks, bool one_stream, bool prepares) {
    StepSetup setup;
    for (std::uint32_t block = 0; block < blocks; ++block) {
        setup.rules.blocks.push_back({std::string(1, static_cast<char>('a' + block)), true});
    }
    setup.rules.workers = workers;
    setup.rules.one_stream = one_stream;
    setup.rules.prepares = prepares;
    setup.rules.mean = 1.0F / static_cast<float>(workers);
    setup.standing.counts.assign(blocks, 0);
    return setup;
}

StepSetup with_commit_points(StepSetup setup, std::uint64_t every, std::uint64_t for_snapshots) {
    setup.rules.commit_points = {every, for_snapshots};
    return setup;
}

StepSetup with_points_that_follow(StepSetup setup) {
    setup.rules.points_follow = true;
    return setup;
}

StepSetup with_tail(StepSetup setup, std::uint32_t at_once, std::uint32_t room) {
    setup.rules.tail = {at_once, room};
    return setup;
}

StepAuthor::StepAuthor(std::uint64_t seed)
    : dice_(seed),
      setup_(step_setup(1 + dice_.below(dice_.chance(800) ? 2 : 4), 1 + dice_.below(4), dice_.chance(250),
                        dice_.chance(250))),
      events_left_(20 + dice_.below(120)),
      wrong_(dice_.chance(500) ? 0 : 25),
      busy_(200 + 200 * dice_.below(4)),
      gives_up_(dice_.chance(500) ? 0 : 60),
      spoils_(dice_.chance(600) ? 0 : 60),
      trouble_(dice_.chance(500) ? 0 : 20) {
    std::uint64_t trainable = 0;
    for (step::BlockRules& block : setup_.rules.blocks) {
        block.trainable = !dice_.chance(150);
        if (block.trainable) ++trainable;
        block.chunks = 1 + dice_.below(2);
    }
    pushes_of_step_ = trainable;
    for (std::uint64_t& count : setup_.standing.counts) count = dice_.below(3);
    setup_.standing.step = dice_.below(5);
    if (dice_.chance(400))
        setup_ = with_commit_points(setup_, dice_.below(4), dice_.chance(300) ? 2 : 0);
    else if (!setup_.rules.prepares && dice_.chance(600))
        setup_ = with_tail(setup_, 1 + dice_.below(3), dice_.below(8));
    if (!setup_.rules.prepares && !setup_.rules.commit_points.is_each_step() && dice_.chance(600))
        setup_ = with_points_that_follow(setup_);
    setup_.standing.attempts = setup_.standing.step + dice_.below(2);
    settings_ =
        dice_.chance(350) ? std::vector<std::uint32_t>{0, 0, 1, 2} : std::vector<std::uint32_t>{3, 3, 4, 5, 6, 7};
    if (dice_.chance(300)) settings_.resize(1);
    if (dice_.chance(30)) settings_ = {0, 3};
}

void StepAuthor::take(const step::Actions& actions) {
    const auto ends = [this](EventKind kind, std::uint32_t block = 0) { under_way_.push_back({kind, 0, block}); };
    for (const step::Action& action : actions) {
        if (const auto* keep = std::get_if<step::Keep>(&action)) ends(EventKind::kept, keep->block);
        if (const auto* update = std::get_if<step::Update>(&action)) {
            ends(EventKind::caught_up, update->block);
            if (update->keeps) ends(EventKind::kept, update->block);
        }
        if (const auto* settle = std::get_if<step::Settle>(&action)) {
            for (const std::uint32_t block : settle->blocks) ends(EventKind::caught_up, block);
        }
        if (const auto* flush = std::get_if<step::Flush>(&action)) {
            for (const std::uint32_t block : flush->blocks) ends(EventKind::written, block);
        }
        if (std::holds_alternative<step::FollowPoint>(action)) ends(EventKind::point_written);
        if (std::holds_alternative<step::TakeBack>(action)) ends(EventKind::taken_back);
        if (std::holds_alternative<step::WriteRecord>(action)) ends(EventKind::recorded);
        if (std::holds_alternative<step::BeginEpoch>(action)) ends(EventKind::epoch_begun);
    }
}

std::optional<StepEvent> StepAuthor::next(const step::State& state) {
    if (events_left_ == 0) return std::nullopt;
    --events_left_;
    if (state.failed() && events_left_ > 12) events_left_ = 12;
    if (!planned_.empty()) {
        const StepEvent event = planned_.front();
        planned_.pop_front();
        return event;
    }
    if (dice_.chance(wrong_) || (state.failed() && dice_.chance(100))) return anything();
    if (!under_way_.empty() && (state.failed() || dice_.chance(busy_))) return completion(state);
    if (dice_.chance(trouble_)) return trouble(state);
    if (!setup_.rules.commit_points.is_each_step() && dice_.chance(30)) {
        return StepEvent{dice_.chance(500) ? EventKind::make_durable : EventKind::commit_soon};
    }
    if (const auto event = likely(state)) return event;
    if (!under_way_.empty()) return completion(state);
    return state.failed() ? anything() : trouble(state);
}

std::optional<StepEvent> StepAuthor::likely(const step::State& state) {
    if (state.failed()) return std::nullopt;
    if (state.stage == step::Stage::prepared) {
        return dice_.chance(60) ? annul(state) : decide(state);
    }
    const std::uint32_t workers = setup_.rules.workers;
    const std::uint32_t first = dice_.below(workers);
    if (setup_.rules.one_stream && state.working() && dice_.chance(400)) {
        if (const auto block = unpushed(state, 0)) return StepEvent{EventKind::push, 0, *block};
    }
    for (std::uint32_t i = 0; i < workers; ++i) {
        if (auto event = of_worker(state, (first + i) % workers)) return event;
    }
    if (!setup_.rules.one_stream || !state.working()) return std::nullopt;
    const auto block = unpushed(state, 0);
    return block ? std::optional(StepEvent{EventKind::push, 0, *block}) : std::nullopt;
}

std::optional<StepEvent> StepAuthor::of_worker(const step::State& state, std::uint32_t worker) {
    const step::Member& member = state.members.at(worker);
    if (member.standing == Standing::voted || state.stage != step::Stage::collecting) return std::nullopt;
    if (member.absent) {
        const bool joins = state.may_join(worker) && dice_.chance(500);
        return joins ? std::optional(StepEvent{EventKind::join, worker}) : std::nullopt;
    }
    if (member.standing == Standing::resting) return begin(state, worker);
    const bool one = setup_.rules.one_stream;
    const auto block = unpushed(state, one ? 0 : worker);
    if (member.standing == Standing::begun) {
        if (block && dice_.chance(50)) return StepEvent{EventKind::pull, one ? 0 : worker, *block};
        if (dice_.chance(gives_up_))
            return StepEvent{EventKind::vote, worker, 0, true, vote(state, worker, false).pushes};
        if (one || !block || dice_.chance(60)) return vote(state, worker, block.has_value());
        if (state.is_void() && dice_.chance(300)) return vote(state, worker, false);
    }
    if (!block) return std::nullopt;
    return StepEvent{EventKind::push, worker, *block};
}

std::optional<std::uint32_t> StepAuthor::unpushed(const step::State& state, std::uint32_t stream) {
    const auto blocks = static_cast<std::uint32_t>(state.blocks.size());
    const std::uint32_t first = dice_.below(blocks);
    for (std::uint32_t i = 0; i < blocks; ++i) {
        const std::uint32_t block = (first + i) % blocks;
        if (setup_.rules.blocks[block].trainable && !state.blocks[block].came[stream]) return block;
    }
    return std::nullopt;
}

StepEvent StepAuthor::begin(const step::State& state, std::uint32_t worker) {
    if (!state.members.anyone_in_step()) of_step_ = settings_[dice_.below(settings_.size())];
    return {EventKind::begin, worker, of_step_};
}

// Early: before some of its pushes.
StepEvent StepAuthor::vote(const step::State& state, std::uint32_t worker, bool early) {
    const step::Member& member = state.members.at(worker);
    StepEvent event{EventKind::vote, worker};
    if (setup_.rules.one_stream) {
        event.pushes = member.at_last_vote + pushes_of_step_;
        return event;
    }
    std::uint64_t missing = 0;
    for (std::uint32_t block = 0; early && block < state.blocks.size(); ++block) {
        if (setup_.rules.blocks[block].trainable && !state.blocks[block].came[worker]) ++missing;
    }
    if (early || dice_.chance(500)) event.pushes = member.pushed + missing;
    return event;
}

StepEvent StepAuthor::decide(const step::State& state) {
    StepEvent event{EventKind::decide, 0, 0, !dice_.chance(150)};
    if (state.clipping.keeps_gradients() || dice_.chance(20)) event.squares = some_squares();
    if (dice_.chance(40)) event.squares = std::numeric_limits<double>::infinity();
    return event;
}

// Mostly of the attempt that the server is in.
StepEvent StepAuthor::annul(const step::State& state) {
    StepEvent event{EventKind::annul};
    event.pushes = state.progress.ended() + (dice_.chance(200) ? 1 : 0);
    return event;
}

double StepAuthor::some_squares() {
    constexpr std::array<double, 6> kSquares{0, 0.01, 0.1, 0.3, 1.7, 9};
    return dice_.chance(5) ? 1e308 : kSquares[dice_.below(dice_.chance(700) ? 4 : 6)];
}

StepEvent StepAuthor::completion(const step::State& state) {
    const std::size_t at = chosen_completion(state);
    StepEvent event = under_way_[at];
    const bool decides = event.kind == EventKind::kept || event.kind == EventKind::caught_up;
    if (decides && !state.blocks[event.block].owes() && dice_.chance(spoils_)) return {EventKind::spoiled};
    if (event.kind == EventKind::caught_up) {
        under_way_[at].kind = EventKind::written;
    } else {
        under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (event.kind == EventKind::kept) {
        event.squares =
            state.is_void() && dice_.chance(500) ? std::numeric_limits<double>::quiet_NaN() : some_squares();
    }
    return event;
}

// A random completion. Updates are on the disk before they are taken back.
std::size_t StepAuthor::chosen_completion(const step::State& state) {
    const std::size_t at = dice_.below(under_way_.size());
    if (under_way_[at].kind != EventKind::taken_back) return at;
    for (std::size_t other = 0; other < under_way_.size(); ++other) {
        const StepEvent& event = under_way_[other];
        if (event.kind == EventKind::written && !state.blocks[event.block].owes()) return other;
    }
    return at;
}

StepEvent StepAuthor::trouble(const step::State& state) {
    const std::uint32_t worker = dice_.below(setup_.rules.workers);
    if (!state.members.anyone_in_step() && dice_.chance(800)) {
        if (dice_.chance(500)) planned_.push_back({EventKind::join, worker});
        return {dice_.chance(500) ? EventKind::leave : EventKind::join, worker};
    }
    if (dice_.chance(400)) return {EventKind::lose, worker};
    if (dice_.chance(300)) return annul(state);
    switch (dice_.below(8)) {
        case 0:
            return {EventKind::fail};
        case 1:
            return {EventKind::break_down};
        case 2:
            return {EventKind::leave, worker};
        case 3:
            return {EventKind::begin, worker, dice_.below(kStepSettings)};
        default:
            return {EventKind::join, worker};
    }
}

StepEvent StepAuthor::anything() {
    const bool of_executor = dice_.chance(100);
    StepEvent event;
    event.kind = static_cast<EventKind>(of_executor ? dice_.below(kEventKinds) : dice_.below(9));
    const bool stream = event.kind == EventKind::pull || event.kind == EventKind::push;
    event.worker = dice_.below(stream && setup_.rules.one_stream ? 1 : setup_.rules.workers);
    event.block = dice_.below(event.kind == EventKind::begin ? kStepSettings : setup_.rules.blocks.size());
    event.wanted = dice_.chance(500);
    event.squares = some_squares();
    const bool needs = setup_.rules.one_stream || event.kind == EventKind::annul;
    if (needs || dice_.chance(300)) event.pushes = dice_.below(20);
    return event;
}

}  // namespace luwu::test
