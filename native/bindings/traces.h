// Bindings of traces: of every server, and of a worker's own records.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "pipeline/tracing.h"

namespace luwu::bindings {

// Records, the number of those that were dropped, and the first and the last step.
using TraceOfServer = std::tuple<nanobind::bytes, std::uint64_t, std::uint64_t, std::uint64_t>;
[[nodiscard]] std::optional<TraceOfServer> take_trace(pipeline::Tracing& tracing);
[[nodiscard]] std::tuple<nanobind::bytes, std::uint64_t> records_of(const trace::Recorded& recorded);
using TraceAsked = std::tuple<std::uint64_t, bool>;
[[nodiscard]] inline TraceAsked make_trace_asked(const pipeline::TraceRequest& request) {
    return {request.records, request.last};
}

// Functions of every server, given how to reach its ParameterServer.
template <class Self, class Core>
void bind_traces(nanobind::class_<Self>& type, Core core) {
    namespace nb = nanobind;
    using namespace nb::literals;
    type.def(
            "start_trace",
            [core](Self& self, std::uint32_t attempts, std::uint64_t most_records, std::uint64_t most_of_worker) {
                core(self).settings().tracing->start(attempts, most_records, most_of_worker);
            },
            "attempts"_a, "most_records"_a, "most_of_worker"_a,
            "Records the next attempts at steps, at most so many spans here and in each worker. Raises StepOrderError "
            "where that is under way already.")
        .def(
            "end_trace", [core](Self& self) { core(self).settings().tracing->take_no_more(); },
            "Records no attempt that has not begun yet.")
        .def(
            "give_trace_up", [core](Self& self) { core(self).settings().tracing->give_up(); },
            "Records no more, and forgets what was recorded.")
        .def(
            "take_trace", [core](Self& self) { return take_trace(*core(self).settings().tracing); },
            "(records, number of dropped ones, first step, last step), once, as soon as the attempts have ended and "
            "nothing is owed; None before. Records are as luwu.core.trace reads them.")
        .def_prop_ro(
            "trace_request",
            [core](const Self& self) { return make_trace_asked(core(self).settings().tracing->request()); },
            "What workers record of the attempt under way: (the most records, it is the last attempt); 0 records: "
            "nothing.");
}

}  // namespace luwu::bindings
