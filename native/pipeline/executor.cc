#include "pipeline/executor.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

namespace luwu::pipeline {

Executor::Executor(store::ChunkStore& store, PipelineSettings settings)
    : shared(store, std::move(settings)),
      gradients(shared),
      keeping(shared),
      owed(shared),
      updates(shared),
      points(shared),
      optimizers(shared),
      parameters(shared),
      states(shared),
      writing(shared) {
    shared.parts = {this, &gradients, &keeping, &optimizers, &owed, &parameters, &points, &states, &updates, &writing};
    optimizers.start();
}

Executor::~Executor() {
    optimizers.stop();
    parameters.stop();
    states.stop();
    writing.stop();
}

void Executor::tell(step::Actions actions) {
    std::move(actions.begin(), actions.end(), std::back_inserter(actions_));
    if (std::exchange(acting_, true)) return;
    std::optional<Error> error;
    try {
        carry_out();
    } catch (const Error& caught) {
        error = caught;
    } catch (const std::exception& caught) {
        error = Error(ErrorKind::server, std::string("the server cannot go on: ") + caught.what());
    }
    acting_ = false;
    if (!error) return;
    actions_.clear();
    break_down(*error);
}

void Executor::carry_out() {
    while (!actions_.empty()) {
        const step::Action action = std::move(actions_.front());
        actions_.pop_front();
        std::visit(*this, action);
    }
}

void Executor::operator()(const step::TakeBack& action) {
    to_take_back_ = action.blocks;
    takes_back_since_ns_ = shared.recorder.begin();
    try_take_back();
}

void Executor::try_take_back() {
    if (!to_take_back_ || shared.failed()) return;
    const bool seen = std::any_of(to_take_back_->begin(), to_take_back_->end(), [this](std::uint32_t block) {
        return shared.reads_in_flight > 0 || shared.window.holds(block) > 0;
    });
    if (seen) return;
    const auto blocks = *std::exchange(to_take_back_, std::nullopt);
    // If no block was updated, nothing was written, and the commit of the step before may be under way.
    if (!blocks.empty()) shared.store.begin_again();
    for (const std::uint32_t block : blocks) {
        if (shared.window.state(block) == schedule::WindowCache::State::resident) shared.window.invalidate(block);
        for (std::uint32_t i = 0; i < shared.chunks_of(block); ++i) {
            shared.states.invalidate(shared.layout.first_chunk(block) + i);
        }
    }
    shared.recorder.end({.begin_ns = takes_back_since_ns_,
                         .step = static_cast<std::uint32_t>(shared.step().progress.step() + 1),
                         .kind = trace::Kind::roll_back});
    tell(shared.machine.taken_back());
}

void Executor::operator()(const step::EndStep& action) {
    gradients.forget();
    updates.end_step();
    keeping.end_step();
    if (action.ending.end == kCommitted) {
        shared.pass.end_step();
        owed.end_step(action.arrivals);
        states.follow(shared.step().owed ? owed.order() : action.arrivals);
    }
    answer(action.ending);
    shared.settings.tracing->stands(shared.step().progress.step(), shared.step().progress.durable_step());
    parameters.retry_waiting();
    states.read_ahead();
    parameters.read_ahead();
}

void Executor::answer(const step::Ending& ending) {
    for (const Reply& reply : std::exchange(replies_, {})) reply({true, ending.end, ending.squares});
    shared.changed.notify_all();
}

void Executor::operator()(const step::Fail& action) {
    shared.settings.on_failure(action.error);
    optimizers.drop_given_up();
    parameters.fail();
    gradients.fail();
    for (const Reply& reply : std::exchange(replies_, {})) reply({false, 0});
    owed.start_due();  // nobody pulls any more
    shared.changed.notify_all();
}

void Executor::break_down(const Error& error) {
    auto actions = shared.machine.break_down(error);
    shared.room.stop();
    optimizers.drop_all();
    tell(std::move(actions));
    shared.changed.notify_all();
}

}  // namespace luwu::pipeline
