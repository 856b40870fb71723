// Python binding of the step machine without an executor; `luwu simulate` runs it in simulated time.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/store_shape.h"
#include "step/machine.h"
#include "store/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

// Actions of steps that nobody clips or gives up. A refusal and a failure are thrown.
using Action =
    std::variant<step::BeginPass, step::Update, step::FinishOwed, step::WriteRecord, step::Answer, step::EndStep>;
using Actions = std::vector<Action>;

void add(Actions& found, step::Action& action) {
    std::visit(
        [&found](auto& one) {
            using One = std::decay_t<decltype(one)>;
            if constexpr (std::is_same_v<One, step::Refuse> || std::is_same_v<One, step::Fail>) {
                throw Error(one.error);
            } else if constexpr (std::is_constructible_v<Action, One>) {
                found.emplace_back(std::move(one));
            } else {
                throw std::logic_error("a step was clipped or given up that cannot be");
            }
        },
        action);
}

Actions told(step::Actions actions) {
    Actions found;
    for (step::Action& action : actions) add(found, action);
    return found;
}

class StepMachine {
  public:
    StepMachine(const std::vector<BlockSpec>& blocks, std::uint32_t workers, bool prepares)
        : machine_(rules_of(blocks, workers, prepares), standing_of(blocks)) {}

    Actions begin_all() {
        const step::StepSettings settings;
        return of_all([&](std::uint32_t worker) { return machine_.begin(worker, settings); });
    }
    Actions vote_all(std::uint64_t pushes) {
        return of_all([&](std::uint32_t worker) { return machine_.vote(worker, false, pushes); });
    }
    Actions pull(std::uint32_t block) { return told(machine_.pull(0, checked(block))); }
    Actions push(std::uint32_t block) { return told(machine_.push(0, checked(block))); }
    Actions decide(bool commits) { return told(machine_.decide(commits)); }
    Actions written(std::uint32_t block) {
        Actions found = told(machine_.caught_up(checked(block)));
        for (Action& action : told(machine_.written(block))) found.push_back(std::move(action));
        return found;
    }
    Actions recorded() { return told(machine_.recorded()); }

  private:
    static step::Rules rules_of(const std::vector<BlockSpec>& blocks, std::uint32_t workers, bool prepares) {
        step::Rules rules;
        for (const BlockSpec& block : blocks) rules.blocks.push_back({block.name, block.trainable});
        rules.workers = workers;
        rules.one_stream = true;
        rules.prepares = prepares;
        rules.mean = 1.0F / static_cast<float>(workers);
        return rules;
    }
    static store::CommitRecord standing_of(const std::vector<BlockSpec>& blocks) {
        store::CommitRecord standing;
        standing.counts.assign(blocks.size(), 0);
        return standing;
    }
    template <class Event>
    Actions of_all(const Event& event) {
        Actions found;
        for (std::uint32_t worker = 0; worker < machine_.state().rules.workers; ++worker) {
            for (step::Action& action : event(worker)) add(found, action);
        }
        return found;
    }
    [[nodiscard]] std::uint32_t checked(std::uint32_t block) const {
        return checked_block(block, machine_.state().blocks.size());
    }

    step::Machine machine_;
};

void bind_actions(nb::handle scope) {
    nb::class_<step::BeginPass>(scope, "BeginPass", "The stream of pulls and pushes starts its pass from the front.");
    nb::class_<step::Update>(scope, "Update", "Update a block and write its records. Ends with `written`.")
        .def_ro("block", &step::Update::block);
    nb::class_<step::FinishOwed>(scope, "FinishOwed", "Make owed updates now: nobody pulls any more.");
    nb::class_<step::WriteRecord>(scope, "WriteRecord", "Write a commit record. Ends with `recorded`.");
    nb::class_<step::Answer>(scope, "Answer", "Tell all who voted that the step is prepared.");
    nb::class_<step::EndStep>(scope, "EndStep", "The step is over: tell all, and let the next one begin.");
}

}  // namespace

void bind_step(nb::module_& module) {
    nb::class_<StepMachine> type(module, "StepMachine",
                                 "The step machine of a server that gets the sum of all workers' gradients, without "
                                 "its executor. Every event returns the actions that it causes, in their order, or "
                                 "raises StepOrderError.");
    bind_actions(type);
    type.def(nb::init<const std::vector<BlockSpec>&, std::uint32_t, bool>(), "blocks"_a, "workers"_a, "prepares"_a,
             "`prepares`: the server is one of several, so a step waits for `decide`.")
        .def("begin_all", &StepMachine::begin_all, "Every worker begins a step, in the order of ranks.")
        .def("vote_all", &StepMachine::vote_all, "pushes"_a,
             "Every worker votes for a commit. The votes count once `pushes` sums have come since the start.")
        .def("pull", &StepMachine::pull, "block"_a, "The workers ask for a block.")
        .def("push", &StepMachine::push, "block"_a, "The sum of a block's gradients has come.")
        .def("decide", &StepMachine::decide, "commits"_a, "The last word on a prepared step.")
        .def("written", &StepMachine::written, "block"_a, "The update of a block is in memory and on the disk.")
        .def("recorded", &StepMachine::recorded, "The commit record is durable.");
}

}  // namespace luwu::bindings
