#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/server_parts.h"
#include "kernels/convert.h"
#include "kernels/optimizer.h"
#include "kernels/split.h"
#include "kernels/sum.h"
#include "module.h"
#include "store/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bench {

namespace {

using bindings::get_dtype;
using bindings::get_optimizer;
using bindings::Group;

template <class Element>
using Vector = nb::ndarray<Element, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyVector = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require_length(const std::string& name, std::size_t found, std::size_t expected) {
    if (found == expected) return;
    throw Error(ErrorKind::invalid, name + " has " + std::to_string(found) + " elements; expected " +
                                        std::to_string(expected) + ", as many as the other buffers");
}

/// The gradients of all workers, all of one length and dtype.
class GradientList {
  public:
    GradientList(std::vector<AnyVector> arrays, const std::string& dtype, float scale)
        : arrays_(std::move(arrays)), dtype_(get_dtype(dtype)), scale_(scale) {
        if (arrays_.empty()) throw Error(ErrorKind::invalid, "the list of gradients is empty; expected at least one");
        const bool is_float = dtype_ == kernels::Dtype::float32;
        for (std::size_t worker = 0; worker < arrays_.size(); ++worker) {
            const std::string name = "gradient " + std::to_string(worker);
            require_length(name, arrays_[worker].size(), arrays_[0].size());
            if (arrays_[worker].dtype() != (is_float ? nb::dtype<float>() : nb::dtype<std::uint16_t>())) {
                throw Error(ErrorKind::invalid, name + " has another element type than the dtype '" + dtype +
                                                    "' says; expected " + (is_float ? "float32" : "uint16") +
                                                    " elements");
            }
        }
    }

    [[nodiscard]] std::size_t elements() const { return arrays_[0].size(); }

    /// Calls work(gradients), with gradients that begin at element `first`.
    template <class Work>
    auto with_gradients_from(std::size_t first, const Work& work) const {
        std::vector<const void*> buffers;
        buffers.reserve(arrays_.size());
        for (const AnyVector& array : arrays_) {
            buffers.push_back(static_cast<const std::byte*>(array.data()) + first * kernels::size_of(dtype_));
        }
        return work(kernels::Gradients{buffers.data(), buffers.size(), dtype_, scale_});
    }

  private:
    std::vector<AnyVector> arrays_;
    kernels::Dtype dtype_;
    float scale_;
};

bool optimizer_update(const std::string& name, const Vector<float>& master, const std::vector<Vector<float>>& states,
                      const std::optional<Vector<std::uint16_t>>& low, std::vector<AnyVector> gradients,
                      const std::string& dtype, float scale, const Group& settings, std::uint64_t t,
                      std::size_t threads, const std::string& low_dtype) {
    const kernels::Optimizer& optimizer = get_optimizer(name);
    const GradientList list(std::move(gradients), dtype, scale);
    kernels::Elements at{
        .master = master.data(), .low = low ? low->data() : nullptr, .low_dtype = get_dtype(low_dtype)};
    if (at.low_dtype == kernels::Dtype::float32) {
        throw Error(ErrorKind::invalid, "low_dtype is 'float32'; expected bfloat16 or float16");
    }
    require_length("master", master.size(), list.elements());
    if (states.size() != optimizer.codes.size()) {
        throw Error(ErrorKind::invalid, "there are " + std::to_string(states.size()) + " states; expected " +
                                            std::to_string(optimizer.codes.size()) + " for " + name);
    }
    for (std::size_t i = 0; i < states.size(); ++i) {
        require_length("state " + std::to_string(i), states[i].size(), list.elements());
        at.states[i] = states[i].data();
    }
    if (low) require_length("low", low->size(), list.elements());
    if (t == 0) throw Error(ErrorKind::invalid, "t is 0; expected the number of the step, counted from 1");
    if (threads == 0) throw Error(ErrorKind::invalid, "threads is 0; expected at least 1");
    const kernels::Step step = optimizer.prepare(bindings::make_groups({settings})[0], t);

    std::atomic<bool> finite = true;
    const nb::gil_scoped_release release;
    kernels::split(list.elements(), threads, [&](std::size_t first, std::size_t count) {
        list.with_gradients_from(first, [&](const kernels::Gradients& from) {
            if (!optimizer.update(kernels::best_instruction_set(), at.from(first), from, count, step)) finite = false;
        });
    });
    return finite;
}

template <class Element>
nb::ndarray<nb::numpy, Element, nb::ndim<1>> own(std::unique_ptr<Element[]> elements, std::size_t count) {
    Element* const data = elements.release();
    const nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<Element*>(pointer); });
    return nb::ndarray<nb::numpy, Element, nb::ndim<1>>(data, {count}, owner);
}

auto sum_gradients(std::vector<AnyVector> gradients, const std::string& dtype, float scale) {
    const GradientList list(std::move(gradients), dtype, scale);
    auto sum = std::make_unique_for_overwrite<float[]>(list.elements());
    {
        const nb::gil_scoped_release release;
        list.with_gradients_from(
            0, [&](const kernels::Gradients& all) { kernels::sum_gradients(sum.get(), all, list.elements()); });
    }
    return own(std::move(sum), list.elements());
}

template <kernels::Dtype dtype>
auto float_to_low(const Vector<const float>& source) {
    auto target = std::make_unique_for_overwrite<std::uint16_t[]>(source.size());
    {
        const nb::gil_scoped_release release;
        kernels::float_to_low(dtype, source.data(), target.get(), source.size());
    }
    return own(std::move(target), source.size());
}

auto float16_to_float(const Vector<const std::uint16_t>& source) {
    auto target = std::make_unique_for_overwrite<float[]>(source.size());
    kernels::low_to_float(kernels::Dtype::float16, source.data(), target.get(), source.size());
    return own(std::move(target), source.size());
}

}  // namespace

void bind_kernels(nb::module_& module) {
    module.def("optimizer_update", &optimizer_update, "optimizer"_a, "master"_a.noconvert(), "states"_a.noconvert(),
               "low"_a.noconvert().none(), "gradients"_a.noconvert(), "dtype"_a, "scale"_a, "hyper_parameters"_a, "t"_a,
               "threads"_a = 1, "low_dtype"_a = "bfloat16",
               "Does step `t` (counted from 1) of an optimizer in place on float32 master and states, and writes\n"
               "master's copy in `low_dtype` to `low` (uint16 elements) unless it is None. The gradients (float32, or\n"
               "bfloat16 or float16 as uint16, as `dtype` says) are summed in order and multiplied by `scale`. False:\n"
               "a gradient is not finite, and all contents are unspecified. luwu.errors.ConfigError: lengths or types\n"
               "do not match.");
    module.def("sum_gradients", &sum_gradients, "gradients"_a.noconvert(), "dtype"_a, "scale"_a = 1.0F,
               "The float32 sum, in order, of the gradients (as for optimizer_update), multiplied by `scale`.");
    module.def("float_to_bfloat16", &float_to_low<kernels::Dtype::bfloat16>, "source"_a.noconvert(),
               "The bfloat16 values, as uint16 elements, nearest to float32 ones; ties go to even.");
    module.def("float_to_float16", &float_to_low<kernels::Dtype::float16>, "source"_a.noconvert(),
               "The float16 values, as uint16 elements, nearest to float32 ones; ties go to even.");
    module.def("float16_to_float", &float16_to_float, "source"_a.noconvert(),
               "The float32 values of float16 ones, which are uint16 elements.");
}

}  // namespace luwu::bench
