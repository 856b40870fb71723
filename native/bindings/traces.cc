#include "bindings/traces.h"

#include <algorithm>

#include "bindings/bindings.h"
#include "trace/recorder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

nb::bytes bytes_of(const trace::Recorded& recorded) {
    const auto records = recorded.records();
    return nb::bytes(static_cast<const void*>(records.data()), records.size_bytes());
}

void record(trace::Recorder& recorder, std::uint16_t kind, std::uint64_t begin_ns, std::uint64_t end_ns,
            std::uint64_t step, std::uint32_t block, std::uint64_t bytes) {
    recorder.add({.begin_ns = begin_ns,
                  .end_ns = end_ns,
                  .bytes = bytes,
                  .step = static_cast<std::uint32_t>(step),
                  .block = block,
                  .kind = static_cast<trace::Kind>(kind)});
}

}  // namespace

std::tuple<nb::bytes, std::uint64_t> records_of(const trace::Recorded& recorded) {
    return {bytes_of(recorded), recorded.dropped};
}

std::optional<TraceOfServer> take_trace(pipeline::Tracing& tracing) {
    const auto traced = tracing.take();
    if (!traced) return std::nullopt;
    return TraceOfServer{bytes_of(traced->recorded), traced->recorded.dropped, traced->first_step, traced->last_step};
}

void bind_recorder(nb::module_& module) {
    nb::class_<trace::Recorder>(module, "TraceRecorder", "Spans of a worker, in memory of a bounded size.")
        .def(nb::init<>())
        .def("start", &trace::Recorder::start, "most_records"_a, "Records the first so many spans from now on.")
        .def("add", &record, "kind"_a, "begin_ns"_a, "end_ns"_a, "step"_a, "block"_a = trace::kNone, "bytes"_a = 0,
             "Records a span; times are of time.monotonic_ns().")
        .def(
            "stop", [](trace::Recorder& self) { return records_of(self.stop()); },
            "Records no more, and returns what was recorded, and the number of spans that found no room.");
}

}  // namespace luwu::bindings
