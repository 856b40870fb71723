#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "bindings/bindings.h"
#include "bindings/store_shape.h"
#include "store/error.h"
#include "store/io_engine.h"
#include "store/lock_file.h"
#include "store/reader.h"
#include "store/snapshots.h"
#include "store/writer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

template <typename Value>
nb::object as_array(std::vector<Value> values) {
    auto* held = new std::vector<Value>(std::move(values));
    const nb::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, Value, nb::ndim<1>>(held->data(), {held->size()}, owner));
}

store::Layout make_layout(const std::vector<std::string>& folders, const std::vector<BlockSpec>& blocks,
                          std::uint64_t chunk_elements, const std::string& optimizer) {
    return {make_shape(blocks, chunk_elements, optimizer), static_cast<std::uint32_t>(folders.size())};
}

std::span<const store::ChunkPlace> chunks_of(const store::Layout& layout, std::uint32_t block) {
    return layout.chunks_of(checked_block(block, layout.block_count(), "store"));
}

const store::ChunkPlace& place_of(const store::Layout& layout, std::uint32_t block, std::uint32_t chunk) {
    const auto places = chunks_of(layout, block);
    if (chunk >= places.size()) {
        throw Error(ErrorKind::invalid,
                    "block " + std::to_string(block) + " of the store has no chunk " + std::to_string(chunk));
    }
    return places[chunk];
}

nb::tuple as_tuple(store::ChunkContents contents) {
    nb::list states;
    for (auto& state : contents.states) states.append(as_array(std::move(state)));
    std::vector<std::uint8_t> parameters(contents.parameters.size());
    std::memcpy(parameters.data(), contents.parameters.data(), parameters.size());
    return nb::make_tuple(as_array(std::move(parameters)), states);
}

struct FileLock {
    FileLock(const std::string& path, bool shared) {
        store::LockedFile locked = store::take_lock(path, shared);
        file = std::move(locked.file);
        held = locked.held;
        owner = std::move(locked.owner);
    }
    void close() { file = store::File(); }

    store::File file;
    bool held = false;
    std::string owner;
};

class StoreReader {
  public:
    StoreReader(const std::vector<std::string>& folders, const std::string& uuid, const std::vector<BlockSpec>& blocks,
                std::uint64_t chunk_elements, const std::string& optimizer)
        : store_(folders, make_layout(folders, blocks, chunk_elements, optimizer), make_uuid(uuid),
                 store::OpenMode::read_only) {}

    [[nodiscard]] const store::CommitRecord& committed() const { return store_.committed(); }
    [[nodiscard]] const std::vector<std::string>& findings() const { return store_.findings(); }

    [[nodiscard]] std::vector<std::uint64_t> steps() const {
        if (!store_.initialised()) return {};
        std::vector<std::uint64_t> steps{committed().step};
        if (store_.before()) steps.push_back(store_.before()->step);
        return steps;
    }

    // (first element, elements) of each chunk of a block.
    [[nodiscard]] std::vector<std::uint64_t> record_bytes(std::uint32_t block) const {
        std::vector<std::uint64_t> result;
        for (const store::ChunkPlace& place : store_.layout().chunks_of(block)) result.push_back(place.record_bytes());
        return result;
    }
    [[nodiscard]] std::vector<std::pair<std::uint64_t, std::uint64_t>> chunks(std::uint32_t block) const {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
        for (const store::ChunkPlace& place : chunks_of(store_.layout(), block)) {
            extents.emplace_back(place.first_element, place.elements);
        }
        return extents;
    }

    [[nodiscard]] nb::tuple read_chunk(std::uint32_t block, std::uint32_t chunk, bool states) const {
        const store::ChunkPlace& place = place_of(store_.layout(), block, chunk);
        store::ChunkContents contents;
        {
            const nb::gil_scoped_release release;
            contents = store::read_chunk(store_, place, states);
        }
        return as_tuple(std::move(contents));
    }

    std::uint64_t take_snapshot() { return store::take_snapshot(store_, true); }

  private:
    store::ChunkStore store_;
};

using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class StoreWriter {
  public:
    StoreWriter(const std::vector<std::string>& folders, const std::string& uuid, bool create,
                const std::vector<BlockSpec>& blocks, std::uint64_t chunk_elements, const std::string& optimizer,
                bool restoring)
        : store_(std::in_place, folders, make_layout(folders, blocks, chunk_elements, optimizer), make_uuid(uuid),
                 create      ? store::OpenMode::create
                 : restoring ? store::OpenMode::restore
                             : store::OpenMode::go_on) {}

    [[nodiscard]] bool initialised() { return store().initialised(); }
    [[nodiscard]] const std::vector<std::string>& findings() { return store().findings(); }
    [[nodiscard]] bool filling_is_shared() { return store().filling_is_shared(); }

    void close() { store_.reset(); }

    void write_chunk(std::uint32_t block, std::uint32_t chunk, std::uint64_t count, const Values& values,
                     const std::vector<Values>& moments) {
        const store::ChunkPlace& place = place_of(store().layout(), block, chunk);
        std::vector<const float*> planes;
        for (const Values& moment : moments) planes.push_back(checked(moment, place));
        const float* data = checked(values, place);
        const nb::gil_scoped_release release;
        store::write_chunk(store(), place, count, data, planes);
    }

    void sync() {
        const nb::gil_scoped_release release;
        store().sync();
    }

    void commit(std::uint64_t step, std::vector<std::uint64_t> counts) {
        if (counts.size() != store().layout().block_count()) {
            throw Error(ErrorKind::invalid, "a commit has an update count for each block");
        }
        store::CommitRecord record;
        record.step = step;
        record.attempts = step;
        record.counts = std::move(counts);
        const nb::gil_scoped_release release;
        store().commit(std::move(record));
    }

    std::uint64_t compact() {
        const nb::gil_scoped_release release;
        return store().compact();
    }

    std::uint64_t take_snapshot() { return store::take_snapshot(store(), false); }
    void restore_snapshot(std::uint64_t step) { store::restore_snapshot(store(), step); }

  private:
    static const float* checked(const Values& values, const store::ChunkPlace& place) {
        if (values.shape(0) != place.elements) {
            throw Error(ErrorKind::invalid, "the chunk has " + std::to_string(place.elements) + " elements, found " +
                                                std::to_string(values.shape(0)));
        }
        return values.data();
    }

    store::ChunkStore& store() {
        if (!store_) throw Error(ErrorKind::order, "the store was closed");
        return *store_;
    }

    std::optional<store::ChunkStore> store_;  // none once closed
};

void bind_block_spec(nb::module_& module) {
    nb::class_<BlockSpec>(module, "BlockSpec", "A block of a store: a flat run of elements.")
        .def(
            "__init__",
            [](BlockSpec* self, std::string name, std::uint64_t elements, bool trainable, bool held,
               const std::string& dtype, bool whole_master) {
                new (self) BlockSpec{std::move(name), elements, trainable, held, get_dtype(dtype), whole_master};
            },
            "name"_a, "elements"_a, "trainable"_a = true, "held"_a = false, "dtype"_a = "float32",
            "whole_master"_a = false)
        .def_ro("name", &BlockSpec::name)
        .def_ro("elements", &BlockSpec::elements)
        .def_ro("trainable", &BlockSpec::trainable)
        .def_ro("held", &BlockSpec::held, "True if workers hold it through the whole step (the root block).");
}

void bind_reader(nb::module_& module) {
    nb::class_<StoreReader>(module, "StoreReader", "Reads a committed store that may be open elsewhere.")
        .def(nb::init<const std::vector<std::string>&, const std::string&, const std::vector<BlockSpec>&, std::uint64_t,
                      const std::string&>(),
             "folders"_a, "uuid"_a, "blocks"_a, "chunk_elements"_a, "optimizer"_a)
        .def_prop_ro("step", [](const StoreReader& self) { return self.committed().step; })
        .def_prop_ro("attempts", [](const StoreReader& self) { return self.committed().attempts; })
        .def_prop_ro("rolled_back", [](const StoreReader& self) { return self.committed().rolled_back; })
        .def_prop_ro("initialised", [](const StoreReader& self) { return self.committed().has_values; })
        .def_prop_ro(
            "findings", [](const StoreReader& self) { return self.findings(); },
            "Damage that opening for writing mends, in words. None of it hides more than the last commit.")
        .def_prop_ro(
            "loss_scale",
            [](const StoreReader& self) -> std::optional<double> {
                if (!self.committed().loss_scale) return std::nullopt;
                return self.committed().loss_scale->scale;
            },
            "Loss scale of the last committed step, where losses are scaled.")
        .def_prop_ro(
            "steps", [](const StoreReader& self) { return self.steps(); },
            "Committed steps that a server can open the store at, the newest first; none before there are values.")
        .def_prop_ro("counts", [](const StoreReader& self) { return self.committed().counts; })
        .def("chunks", &StoreReader::chunks, "block"_a, "(first element, elements) of each chunk of a block.")
        .def("record_bytes", &StoreReader::record_bytes, "block"_a, "Bytes on disk of one version of each chunk.")
        .def("read_chunk", &StoreReader::read_chunk, "block"_a, "chunk"_a, "states"_a,
             "Parameters as bytes, and the list of fp32 states of one chunk: [master,] and the optimizer's, such as m "
             "and v; all checksums compared. Without states only its parameters are read.")
        .def("take_snapshot", &StoreReader::take_snapshot, nb::call_guard<nb::gil_scoped_release>(),
             "Take a snapshot of the last commit of a store that another process trains on; returns its step.");
}

void bind_writer(nb::module_& module) {
    nb::class_<StoreWriter>(module, "StoreWriter", "Writes a store that nobody serves, under the server's lock.")
        .def(nb::init<const std::vector<std::string>&, const std::string&, bool, const std::vector<BlockSpec>&,
                      std::uint64_t, const std::string&, bool>(),
             "folders"_a, "uuid"_a, "create"_a, "blocks"_a, "chunk_elements"_a, "optimizer"_a, "restoring"_a = false,
             "restoring: for restore_snapshot alone, which does not need the committed chunks' files.")
        .def_prop_ro("initialised", &StoreWriter::initialised, "True once anything was committed.")
        .def_prop_ro(
            "findings", [](StoreWriter& self) { return self.findings(); }, "Damage that was met and mended, in words.")
        .def_prop_ro("filling_is_shared", &StoreWriter::filling_is_shared,
                     "True while a copy of the store made with hard links has the files of its first values, too: the "
                     "first chunk that is written puts empty files in their place.")
        .def("write_chunk", &StoreWriter::write_chunk, "block"_a, "chunk"_a, "count"_a, "values"_a, "moments"_a,
             "Write a chunk at an update count: fp32 parameters, and the states after the master or an empty list.")
        .def("sync", &StoreWriter::sync, "Make what was written durable.")
        .def("commit", &StoreWriter::commit, "step"_a, "counts"_a, "Commit a step with each block's update count.")
        .def("compact", &StoreWriter::compact,
             "Give the room of the versions that are not committed back; returns the bytes.")
        .def("take_snapshot", &StoreWriter::take_snapshot, nb::call_guard<nb::gil_scoped_release>(),
             "Take a snapshot of what is committed; returns its step.")
        .def("restore_snapshot", &StoreWriter::restore_snapshot, "step"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Make the store stand at its snapshot of a step again; the snapshot stays.")
        .def("close", &StoreWriter::close, "Let go of the store and its lock; nothing else works afterwards.");
}

void bind_file_lock(nb::module_& module) {
    nb::class_<FileLock>(module, "FileLock", "A lock on a file, until it is closed.")
        .def(nb::init<const std::string&, bool>(), "path"_a, "shared"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_ro("held", &FileLock::held, "False where another process has it.")
        .def_ro("owner", &FileLock::owner, "The process that holds the lock, as it wrote itself down.")
        .def("close", &FileLock::close, "Let go of it.");
}

void bind_functions(nb::module_& module) {
    module.def("snapshot_steps", &store::snapshot_steps, "folders"_a,
               "Steps of the snapshots of a store in these folders, ascending.");
    module.def("remove_snapshot", &store::remove_snapshot, "folders"_a, "step"_a,
               nb::call_guard<nb::gil_scoped_release>(), "Remove a store's snapshot of a step.");
    module.def(
        "io_backend", [] { return std::string(store::make_io_engine(1)->name()); },
        "I/O engine of this machine: 'io_uring' or 'threads'.");
    module.def(
        "io_uring_built_in",
        [] {
#if LUWU_HAVE_URING
            return true;
#else
            return false;
#endif
        },
        "True if liburing was there when this module was built.");
}

}  // namespace

void bind_store(nb::module_& module) {
    bind_block_spec(module);
    bind_reader(module);
    bind_writer(module);
    bind_file_lock(module);
    bind_functions(module);
}

}  // namespace luwu::bindings
