#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/store_shape.h"
#include "store/error.h"
#include "store/io_engine.h"
#include "store/reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

store::StoreShape make_shape(const std::vector<BlockSpec>& blocks, const std::string& parameter_dtype,
                             std::uint64_t chunk_elements) {
    store::StoreShape shape;
    if (parameter_dtype != "float32" && parameter_dtype != "bfloat16") {
        throw Error(ErrorKind::invalid, "parameter dtype is '" + parameter_dtype + "'; expected float32 or bfloat16");
    }
    shape.parameter_dtype = parameter_dtype == "float32" ? kernels::Dtype::float32 : kernels::Dtype::bfloat16;
    shape.chunk_elements = chunk_elements;
    for (const BlockSpec& block : blocks) shape.blocks.push_back({block.name, block.elements, block.trainable});
    return shape;
}

store::Uuid make_uuid(const std::string& bytes) {
    store::Uuid uuid{};
    if (bytes.size() != 2 * uuid.size()) {
        throw Error(ErrorKind::invalid, "a store's uuid has 32 hexadecimal digits; found '" + bytes + "'");
    }
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        uuid[i] = static_cast<std::uint8_t>(std::stoul(bytes.substr(2 * i, 2), nullptr, 16));
    }
    return uuid;
}

namespace {

template <typename Value>
nb::object as_array(std::vector<Value> values) {
    auto* held = new std::vector<Value>(std::move(values));
    const nb::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
    return nb::cast(nb::ndarray<nb::numpy, Value, nb::ndim<1>>(held->data(), {held->size()}, owner));
}

class StoreReader {
  public:
    StoreReader(const std::vector<std::string>& folders, const std::string& uuid, const std::vector<BlockSpec>& blocks,
                const std::string& parameter_dtype, std::uint64_t chunk_elements)
        : store_(folders,
                 store::Layout(make_shape(blocks, parameter_dtype, chunk_elements),
                               static_cast<std::uint32_t>(folders.size())),
                 make_uuid(uuid), store::OpenMode::read_only) {}

    [[nodiscard]] const store::CommitRecord& committed() const { return store_.committed(); }

    [[nodiscard]] std::vector<std::uint64_t> steps() const {
        if (!store_.initialised()) return {};
        std::vector<std::uint64_t> steps{committed().step};
        if (store_.before()) steps.push_back(store_.before()->step);
        return steps;
    }

    [[nodiscard]] nb::tuple read_block(std::uint32_t block) const {
        if (block >= store_.layout().block_count()) {
            throw Error(ErrorKind::invalid, "the store has no block " + std::to_string(block));
        }
        store::BlockContents contents;
        {
            const nb::gil_scoped_release release;
            contents = store::read_block(store_, block);
        }
        nb::list states;
        for (auto& state : contents.states) states.append(as_array(std::move(state)));
        std::vector<std::uint8_t> parameters(contents.parameters.size());
        std::memcpy(parameters.data(), contents.parameters.data(), parameters.size());
        return nb::make_tuple(as_array(std::move(parameters)), states);
    }

  private:
    store::ChunkStore store_;
};

}  // namespace

void bind_store(nb::module_& module) {
    nb::class_<BlockSpec>(module, "BlockSpec", "One block of a store: a flat run of elements.")
        .def(
            "__init__",
            [](BlockSpec* self, std::string name, std::uint64_t elements, bool trainable, bool held) {
                new (self) BlockSpec{std::move(name), elements, trainable, held};
            },
            "name"_a, "elements"_a, "trainable"_a = true, "held"_a = false)
        .def_ro("name", &BlockSpec::name)
        .def_ro("elements", &BlockSpec::elements)
        .def_ro("trainable", &BlockSpec::trainable)
        .def_ro("held", &BlockSpec::held, "Whether workers hold it through the whole step (the root unit's blocks).");

    nb::class_<StoreReader>(module, "StoreReader", "Reads a committed store that may be open elsewhere.")
        .def(nb::init<const std::vector<std::string>&, const std::string&, const std::vector<BlockSpec>&,
                      const std::string&, std::uint64_t>(),
             "folders"_a, "uuid"_a, "blocks"_a, "parameter_dtype"_a, "chunk_elements"_a)
        .def_prop_ro("step", [](const StoreReader& self) { return self.committed().step; })
        .def_prop_ro("attempts", [](const StoreReader& self) { return self.committed().attempts; })
        .def_prop_ro("rolled_back", [](const StoreReader& self) { return self.committed().rolled_back; })
        .def_prop_ro("initialised", [](const StoreReader& self) { return self.committed().sequence > 0; })
        .def_prop_ro(
            "steps", [](const StoreReader& self) { return self.steps(); },
            "Committed steps that a server can open the store at, the newest first; none before there are values.")
        .def_prop_ro("counts", [](const StoreReader& self) { return self.committed().counts; })
        .def("read_block", &StoreReader::read_block, "block"_a,
             "Parameters as bytes, and the list of fp32 states [master,] m, v of one block; all checksums compared.");

    module.def(
        "io_backend", [] { return std::string(store::make_io_engine(1)->name()); },
        "What moves data to and from the disk here: 'io_uring' or 'threads'.");
    module.def(
        "io_uring_built_in",
        [] {
#if LUWU_HAVE_URING
            return true;
#else
            return false;
#endif
        },
        "Whether liburing was there when this module was built.");
}

}  // namespace luwu::bindings
