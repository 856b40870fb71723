#include "support.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "kernels/convert.h"
#include "kernels/keep.h"
#include "kernels/optimizer.h"
#include "kernels/remainder.h"

namespace luwu::test {

ErrorKind kind_of(const std::function<void()>& call, const std::string& mentions) {
    try {
        call();
    } catch (const Error& error) {
        CAPTURE(std::string(error.what()));
        CHECK(std::string(error.what()).find(mentions) != std::string::npos);
        return error.kind();
    }
    FAIL("expected an error");
    return ErrorKind::io;
}

std::vector<std::byte> rounded(kernels::Dtype dtype, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * kernels::size_of(dtype));
    if (dtype == kernels::Dtype::float32) {
        std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
        kernels::float_to_low(dtype, values.data(), reinterpret_cast<std::uint16_t*>(bytes.data()), values.size());
    }
    return bytes;
}

std::vector<std::byte> Rig::make_gradient(std::uint32_t worker, std::uint64_t step, std::uint32_t block,
                                          bool spoil) const {
    const std::uint64_t elements = layout_.shape().blocks[block].elements;
    std::vector<float> values(elements);
    const float scale = loss_scale ? static_cast<float>(loss_scale->scale) : 1.0F;
    for (std::uint64_t i = 0; i < elements; ++i) values[i] = gradient_value(worker, step, block, i) * scale;
    if (spoil) values[elements / 2] = std::numeric_limits<float>::infinity();
    return rounded(layout_.dtype(block), values);
}

namespace {

// Passes values through the code that the store keeps states in.
void keep_as(kernels::StateCode code, std::vector<float>& values, std::uint64_t t) {
    if (code == kernels::StateCode::float32) return;
    std::vector<std::byte> plane(kernels::plane_bytes(code, values.size()));
    kernels::encode(code, values.data(), plane.data(), values.size(), t);
    kernels::decode(code, plane.data(), values.data(), values.size());
}

}  // namespace

std::vector<BlockContents> expected_contents(const Dtypes& dtypes, std::uint32_t workers, std::uint64_t steps,
                                             const SumGradients& sum, const kernels::Optimizer& optimizer,
                                             std::optional<double> max_norm, float loss_scale) {
    const store::StoreShape shape = small_shape(dtypes, optimizer);
    std::vector<BlockContents> all;
    std::vector<float> scales{0};  // per step
    for (std::uint64_t step = 1; step <= steps; ++step) {
        scales.push_back(1.0F / static_cast<float>(workers) / loss_scale);
        if (!max_norm) continue;
        const double factor = *max_norm / (std::sqrt(sum_of_squares(dtypes, workers, step, loss_scale)) + 1e-6);
        if (factor < 1) scales.back() = static_cast<float>(static_cast<double>(scales.back()) * factor);
    }
    for (std::uint32_t block = 0; block < shape.blocks.size(); ++block) {
        const std::uint64_t elements = shape.blocks[block].elements;
        std::vector<float> master(elements);
        std::vector<std::vector<float>> states(optimizer.codes.size(), std::vector<float>(elements));
        std::vector<std::uint16_t> copy(elements);
        std::vector<std::uint16_t> remainder(elements);
        const kernels::Dtype dtype = dtypes.of(block);
        const bool low = dtype != kernels::Dtype::float32;
        const bool splits = shape.blocks[block].trainable && shape.blocks[block].master() == store::Master::remainder;
        for (std::uint64_t i = 0; i < elements; ++i) master[i] = first_value(block, i);
        if (low) kernels::float_to_low(dtype, master.data(), copy.data(), elements);
        if (splits) kernels::split_master(master.data(), copy.data(), remainder.data(), elements);
        for (std::uint64_t step = 1; shape.blocks[block].trainable && step <= steps; ++step) {
            std::vector<std::vector<std::byte>> pushed;
            std::vector<const void*> buffers;
            for (std::uint32_t worker = 0; worker < workers; ++worker) {
                std::vector<float> values(elements);
                for (std::uint64_t i = 0; i < elements; ++i) {
                    values[i] = gradient_value(worker, step, block, i) * loss_scale;
                }
                pushed.push_back(rounded(dtype, values));
                buffers.push_back(pushed.back().data());
            }
            kernels::Gradients gradients{buffers.data(), workers, dtype, scales[step]};
            std::vector<float> summed;
            if (sum) {
                summed = sum(buffers, dtype, elements);
                buffers = {summed.data()};
                gradients = {buffers.data(), 1, kernels::Dtype::float32, gradients.scale};
            }
            const auto settings = optimizer.prepare(kSettings, step);
            kernels::Elements at{.master = master.data(), .low = low ? copy.data() : nullptr, .low_dtype = dtype};
            for (std::size_t i = 0; i < states.size(); ++i) at.states[i] = states[i].data();
            if (!optimizer.update(kernels::best_instruction_set(), at, gradients, elements, settings)) {
                throw std::runtime_error("the reference met a gradient that is not finite");
            }
            if (splits) kernels::split_master(master.data(), copy.data(), remainder.data(), elements);
            for (std::size_t i = 0; i < states.size(); ++i) keep_as(optimizer.codes[i], states[i], step);
        }
        BlockContents contents;
        contents.parameters.resize(shape.blocks[block].bytes());
        std::memcpy(contents.parameters.data(), low ? static_cast<const void*>(copy.data()) : master.data(),
                    contents.parameters.size());
        if (shape.blocks[block].trainable && low) contents.states.push_back(master);
        if (shape.blocks[block].trainable) {
            contents.states.insert(contents.states.end(), states.begin(), states.end());
        }
        all.push_back(std::move(contents));
    }
    return all;
}

double sum_of_squares(const Dtypes& dtypes, std::uint32_t workers, std::uint64_t step, float loss_scale) {
    const store::Layout layout(small_shape(dtypes), 1);
    const float scale = 1.0F / static_cast<float>(workers) / loss_scale;
    double total = 0;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
        if (!layout.shape().blocks[block].trainable) continue;
        double sum = 0;
        for (const store::ChunkPlace& place : layout.chunks_of(block)) {
            std::vector<std::vector<std::byte>> gradients;
            std::vector<const void*> buffers;
            for (std::uint32_t worker = 0; worker < workers; ++worker) {
                std::vector<float> values(place.elements);
                for (std::uint64_t i = 0; i < place.elements; ++i) {
                    values[i] = gradient_value(worker, step, block, place.first_element + i) * loss_scale;
                }
                buffers.push_back(gradients.emplace_back(rounded(dtypes.of(block), values)).data());
            }
            std::vector<float> kept(place.elements);
            sum += kernels::keep_gradients(kept.data(), {buffers.data(), workers, dtypes.of(block), scale},
                                           place.elements);
        }
        total += sum;
    }
    return total;
}

std::vector<BlockContents> stored_contents(const std::vector<std::string>& folders, const Dtypes& dtypes,
                                           const kernels::Optimizer& optimizer) {
    const store::Layout layout(small_shape(dtypes, optimizer), static_cast<std::uint32_t>(folders.size()));
    const store::ChunkStore store(folders, layout, kUuid, store::OpenMode::read_only);
    std::vector<BlockContents> all;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) all.push_back(read_block(store, block));
    return all;
}

bool equal(const std::vector<BlockContents>& left, const std::vector<BlockContents>& right) {
    if (left.size() != right.size()) return false;
    for (std::size_t block = 0; block < left.size(); ++block) {
        if (left[block].parameters != right[block].parameters) return false;
        if (left[block].states.size() != right[block].states.size()) return false;
        for (std::size_t plane = 0; plane < left[block].states.size(); ++plane) {
            const auto& a = left[block].states[plane];
            const auto& b = right[block].states[plane];
            if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) return false;
        }
    }
    return true;
}

void wait_until(const std::function<bool()>& holds) {
    constexpr std::chrono::seconds patience{60};
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!holds()) {
        if (std::chrono::steady_clock::now() > deadline) FAIL("waited in vain");
        std::this_thread::yield();
    }
}

}  // namespace luwu::test
