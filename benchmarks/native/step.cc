// The step machine alone, event by event, for simulations of whole jobs (harness/jobs).
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "module.h"
#include "step/machine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bench {

namespace {

template <class... Kinds>
struct Overloaded : Kinds... {
    using Kinds::operator()...;
};
template <class... Kinds>
Overloaded(Kinds...) -> Overloaded<Kinds...>;

using Counts = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // steps, attempts, rolled back

// An action as a tuple: its name, then what belongs to it.
nb::tuple tuple_of(const step::Action& action) {
    return std::visit(Overloaded{
                          [](const step::BeginPass&) { return nb::make_tuple("begin_pass"); },
                          [](const step::PlanKept&) { return nb::make_tuple("plan_kept"); },
                          [](const step::GiveBack& one) { return nb::make_tuple("give_back", one.block); },
                          [](const step::Keep& one) { return nb::make_tuple("keep", one.block); },
                          [](const step::Update& one) { return nb::make_tuple("update", one.block, one.keeps); },
                          [](const step::HurryOwed&) { return nb::make_tuple("hurry_owed"); },
                          [](const step::FinishOwed&) { return nb::make_tuple("finish_owed"); },
                          [](const step::Settle& one) { return nb::make_tuple("settle", one.blocks, one.writes); },
                          [](const step::Flush& one) { return nb::make_tuple("flush", one.blocks); },
                          [](const step::FollowPoint&) { return nb::make_tuple("follow_point"); },
                          [](const step::TakeBack& one) { return nb::make_tuple("take_back", one.blocks); },
                          [](const step::WriteRecord& one) {
                              return nb::make_tuple("write_record", one.record.step, one.record.attempts,
                                                    one.record.rolled_back);
                          },
                          [](const step::BeginEpoch&) { return nb::make_tuple("begin_epoch"); },
                          [](const step::Answer& one) {
                              return nb::make_tuple("answer", static_cast<int>(one.ending.end), one.ending.squares);
                          },
                          [](const step::EndStep& one) {
                              return nb::make_tuple("end_step", static_cast<int>(one.ending.end), one.ending.squares);
                          },
                          [](const step::Refuse& one) { return nb::make_tuple("refuse", one.text()); },
                          [](const step::Fail& one) { return nb::make_tuple("fail", one.text()); },
                      },
                      action);
}

nb::list told(const step::Actions& actions) {
    nb::list found;
    for (const step::Action& action : actions) found.append(tuple_of(action));
    return found;
}

class StepMachine {
  public:
    StepMachine(std::uint32_t blocks, std::uint32_t workers, bool prepares, const Counts& standing,
                std::uint64_t commit_every, std::uint32_t at_once, bool points_follow)
        : machine_(rules_of(blocks, workers, prepares, commit_every, at_once, points_follow),
                   record_of(blocks, standing)) {}

    nb::list begin(std::uint32_t worker, std::optional<double> max_norm) {
        step::StepSettings settings;
        settings.gradient.max_norm = max_norm;
        return told(machine_.begin(worker, settings));
    }
    nb::list push(std::uint32_t worker, std::uint32_t block) { return told(machine_.push(worker, block)); }
    nb::list vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes) {
        return told(machine_.vote(worker, roll_back, pushes));
    }
    nb::list annul(std::uint64_t ended) { return told(machine_.annul(ended)); }
    [[nodiscard]] std::uint64_t ended() const { return machine_.state().progress.ended(); }
    [[nodiscard]] bool is_void() const { return machine_.state().verdict == step::Verdict::lost; }
    [[nodiscard]] bool waits(std::uint32_t worker) const { return machine_.state().members.at(worker).waits(); }
    nb::list decide(bool commits, double squares) { return told(machine_.decide(commits, squares)); }
    nb::list join(std::uint32_t worker) { return told(machine_.join(worker)); }
    nb::list leave(std::uint32_t worker) { return told(machine_.leave(worker)); }
    nb::list lose(std::uint32_t worker) { return told(machine_.lose(worker)); }
    nb::list kept(std::uint32_t block, double squares) { return told(machine_.kept(block, squares)); }
    nb::list spoiled() { return told(machine_.spoiled()); }
    nb::list caught_up(std::uint32_t block) { return told(machine_.caught_up(block)); }
    nb::list written(std::uint32_t block) { return told(machine_.written(block)); }
    nb::list point_written() { return told(machine_.point_written()); }
    nb::list taken_back() { return told(machine_.taken_back()); }
    nb::list recorded() { return told(machine_.recorded()); }
    nb::list commit_soon() { return told(machine_.commit_soon()); }
    nb::list make_durable() { return told(machine_.make_durable()); }
    nb::list fail(const std::string& why) { return told(machine_.fail(Error(ErrorKind::worker_lost, why))); }
    [[nodiscard]] bool may_join(std::uint32_t worker) const { return machine_.state().may_join(worker); }
    [[nodiscard]] Counts counts() const {
        const step::Progress& progress = machine_.state().progress;
        return {progress.step(), progress.attempts(), progress.rolled_back()};
    }

    [[nodiscard]] std::uint64_t durable_step() const { return machine_.state().progress.durable_step(); }

  private:
    static step::Rules rules_of(std::uint32_t blocks, std::uint32_t workers, bool prepares, std::uint64_t commit_every,
                                std::uint32_t at_once, bool points_follow) {
        step::Rules rules;
        for (std::uint32_t block = 0; block < blocks; ++block) rules.blocks.push_back({std::to_string(block), true});
        rules.workers = workers;
        rules.prepares = prepares;
        rules.commit_points.every = commit_every;
        rules.points_follow = points_follow;
        rules.tail = {at_once, 1};
        rules.mean = 1.0F / static_cast<float>(workers);
        return rules;
    }
    static store::CommitRecord record_of(std::uint32_t blocks, const Counts& standing) {
        store::CommitRecord record;
        std::tie(record.step, record.attempts, record.rolled_back) = standing;
        record.counts.assign(blocks, record.step);
        return record;
    }

    step::Machine machine_;
};

}  // namespace

void bind_step(nb::module_& module) {
    nb::class_<StepMachine>(module, "StepMachine",
                            "The step machine of a server whose workers push their own gradients. Every event returns "
                            "its actions as tuples: a name, then what belongs to it.")
        .def(nb::init<std::uint32_t, std::uint32_t, bool, const Counts&, std::uint64_t, std::uint32_t, bool>(),
             "blocks"_a, "workers"_a, "prepares"_a, "standing"_a, "commit_every"_a = 1, "at_once"_a = 0,
             "points_follow"_a = false,
             "`standing`: steps, attempts and roll-backs of the store's last commit. `at_once`: blocks that are "
             "updated at the same time where a step is answered before it is on the disk; one more is kept.")
        .def("begin", &StepMachine::begin, "worker"_a, "max_norm"_a.none())
        .def("push", &StepMachine::push, "worker"_a, "block"_a)
        .def("vote", &StepMachine::vote, "worker"_a, "roll_back"_a, "pushes"_a)
        .def("decide", &StepMachine::decide, "commits"_a, "squares"_a)
        .def("annul", &StepMachine::annul, "ended"_a)
        .def_prop_ro("ended", &StepMachine::ended, "Attempts that have ended.")
        .def_prop_ro("is_void", &StepMachine::is_void, "True where a lost worker has made the attempt void.")
        .def("waits", &StepMachine::waits, "worker"_a, "True from a worker's vote until the end of the attempt.")
        .def("join", &StepMachine::join, "worker"_a)
        .def("leave", &StepMachine::leave, "worker"_a)
        .def("lose", &StepMachine::lose, "worker"_a)
        .def("kept", &StepMachine::kept, "block"_a, "squares"_a)
        .def("spoiled", &StepMachine::spoiled)
        .def("caught_up", &StepMachine::caught_up, "block"_a)
        .def("written", &StepMachine::written, "block"_a)
        .def("point_written", &StepMachine::point_written)
        .def("taken_back", &StepMachine::taken_back)
        .def("recorded", &StepMachine::recorded)
        .def("commit_soon", &StepMachine::commit_soon)
        .def("make_durable", &StepMachine::make_durable)
        .def("fail", &StepMachine::fail, "why"_a)
        .def("may_join", &StepMachine::may_join, "worker"_a)
        .def_prop_ro("durable_step", &StepMachine::durable_step, "Steps that are on the disk, with their record.")
        .def_prop_ro("counts", &StepMachine::counts, "Steps, attempts and roll-backs that were answered.");
}

}  // namespace luwu::bench
