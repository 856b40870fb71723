#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "kernels/copy.h"
#include "kernels/crc32c.h"
#include "kernels/instruction_set.h"
#include "store/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

using AnyBuffer = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using WritableBuffer = nb::ndarray<nb::c_contig, nb::device::cpu>;

void copy_past_cache(const WritableBuffer& target, const AnyBuffer& source) {
    if (target.nbytes() != source.nbytes()) {
        throw Error(ErrorKind::invalid, "target has " + std::to_string(target.nbytes()) + " bytes; expected " +
                                            std::to_string(source.nbytes()) + ", as many as source");
    }
    const nb::gil_scoped_release release;
    kernels::copy_past_cache(target.data(), source.data(), source.nbytes());
}

std::uint32_t crc32c(const AnyBuffer& buffer, std::uint32_t crc) {
    const nb::gil_scoped_release release;
    return kernels::crc32c(crc, buffer.data(), buffer.nbytes());
}

}  // namespace

void bind_kernels(nb::module_& module) {
    module.def("copy_past_cache", &copy_past_cache, "target"_a.noconvert(), "source"_a.noconvert(),
               nb::sig("def copy_past_cache(target: object, source: object) -> None"),  // numpy's and torch's alike
               "Copies the bytes of one contiguous buffer to another of the same size that it does not overlap, past\n"
               "the cache: faster than an ordinary copy where this core reads neither again soon.\n"
               "luwu.errors.ConfigError: the sizes differ.");
    module.def("crc32c", &crc32c, "buffer"_a.noconvert(), "crc"_a = 0,
               nb::sig("def crc32c(buffer: object, crc: int = 0) -> int"),  // bytes, too
               "Extends `crc` (0 at the start) over the bytes of a contiguous buffer.");
    module.def("instruction_set", &kernels::instruction_set,
               "The instruction set of the kernels here: 'avx512', 'avx2', 'sse2' or 'neon'.");
}

}  // namespace luwu::bindings
