// Measurements of this machine's disk and memory, made by the server's own parts.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/store_shape.h"
#include "pipeline/update_probe.h"
#include "store/disk_probe.h"
#include "store/numa.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

nb::dict run_disk_probe(const store::DiskProbe& probe, std::uint64_t read_bytes, std::uint64_t write_bytes,
                        double seconds, bool shared) {
    store::ProbeRequest request;
    request.sharing = shared ? store::Sharing::shared : store::Sharing::own;
    request.read_bytes = read_bytes;
    request.write_bytes = write_bytes;
    request.seconds = seconds;
    store::ProbeResult found;
    {
        const nb::gil_scoped_release release;
        found = probe.run(request);
    }
    nb::dict result;
    result["bytes_read"] = found.bytes_read;
    result["bytes_written"] = found.bytes_written;
    result["seconds"] = found.seconds;
    result["processor_seconds"] = found.processor_seconds;
    result["sync_seconds"] = found.sync_seconds;
    return result;
}

double measure_update(const std::string& optimizer, const std::string& dtype, std::uint32_t workers,
                      std::uint32_t threads, bool verify, double seconds, std::uint32_t trims) {
    pipeline::UpdateProbe probe;
    probe.optimizer = &get_optimizer(optimizer);
    probe.dtype = get_dtype(dtype);
    probe.workers = workers;
    probe.threads = threads;
    probe.trims = trims;
    probe.verify = verify;
    probe.seconds = seconds;
    const nb::gil_scoped_release release;
    const pipeline::UpdateRate found = pipeline::measure_update(probe);
    return static_cast<double>(found.elements) / found.seconds;
}

std::vector<std::vector<int>> numa_processors() {
    std::vector<std::vector<int>> processors;
    for (store::NumaNode& node : store::numa_nodes()) processors.push_back(std::move(node.processors));
    return processors;
}

}  // namespace

void bind_probes(nb::module_& module) {
    nb::class_<store::DiskProbe>(module, "DiskProbe",
                                 "Measures the disk below a folder, on a file that is gone afterwards.")
        .def(nb::init<const std::string&, std::uint64_t>(), "folder"_a, "file_bytes"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("direct", &store::DiskProbe::direct, "True if it goes past the page cache.")
        .def(
            "run", &run_disk_probe, "read_bytes"_a, "write_bytes"_a, "seconds"_a, "shared"_a = false,
            "Read and write this number of bytes in turn, from the same memory, over and over, as an update out of "
            "core does; 0: not; `shared`: memory that processes may share. Gives bytes_read, bytes_written, seconds, "
            "the processor_seconds spent, and the sync_seconds until all was durable. luwu.errors.ConfigError: lengths "
            "that are no whole pages.");
    module.def("measure_update", &measure_update, "optimizer"_a, "dtype"_a, "workers"_a, "threads"_a, "verify"_a,
               "seconds"_a, "trims"_a = 0,
               "Elements a second that all threads update together in memory, whole chunks with their checksums; "
               "`verify`: of what was read from the disk, too; `trims`: values of the workers' gradients that are left "
               "out at each end.");
    module.def("numa_processors", &numa_processors,
               "The processors of each NUMA node that a server in this process divides its work among.");
}

}  // namespace luwu::bindings
