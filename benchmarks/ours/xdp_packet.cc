// Time of the XDP switch for a packet, by BPF_PROG_TEST_RUN; one JSON object a line. Run by benchmarks/xdp_packet.py
// with the file of the programs and the number of calls for each figure.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fabric/core/address.h"
#include "fabric/protocol/packet.h"
#include "store/error.h"
#include "switch/xdp_job.h"

using namespace luwu;
using namespace luwu::fabric;
using namespace luwu::switching;

namespace {

constexpr std::uint32_t kRuns = 20'000;  // in one call; the kernel says the mean
constexpr std::uint32_t kSlots = 4096;

class Measured {
  public:
    Measured(const char* path, int calls, std::uint32_t payload_bytes, std::uint32_t children)
        : object_(bpf_object__open(path), &bpf_object__close), calls_(calls), seal_(77, 11, payload_bytes) {
        if (object_ == nullptr) throw Error(ErrorKind::io, std::string("cannot open ") + path);
        wiring_.job = 77;
        wiring_.key = 11;
        wiring_.payload_bytes = payload_bytes;
        wiring_.window.fill(kSlots);
        XdpPlace place{parse_address("10.0.0.1", 1), parse_address("10.0.0.2", 2), 0, {}};
        place.children.assign(children, parse_address("10.0.0.3", 3));
        job_ = xdp_job(wiring_, place);
        prepare_xdp(object_.get(), job_, place.interfaces_end);
        if (bpf_object__load(object_.get()) != 0) throw Error(ErrorKind::io, "the kernel refuses the programs");
        const auto weights = xdp_weights(wiring_.key);
        set("weights", 0, *weights);
        set("paths", LUWU_XDP_PARENT, luwu_path{{}, {}, 99, 1});
    }
    // Nanoseconds of one run: the least of all calls, because other processes only ever add to it.
    unsigned nanoseconds(const char* name, luwu_kind kind, luwu_form form, std::uint32_t expected) {
        const int program = bpf_program__fd(bpf_object__find_program_by_name(object_.get(), name));
        unsigned least = ~0U;
        for (int call = 0; call < calls_; ++call) {
            luwu_state state{};
            state.epoch = ++epoch_;
            state.ready = state.broadcasts = 1;
            set("state", 0, state);
            const std::vector<std::byte> frame = make_frame(kind, form);
            std::vector<std::byte> out(frame.size());
            LIBBPF_OPTS(bpf_test_run_opts, options);
            options.data_in = frame.data();
            options.data_size_in = static_cast<std::uint32_t>(frame.size());
            options.data_out = out.data();
            options.data_size_out = static_cast<std::uint32_t>(out.size());
            options.repeat = kRuns;
            if (bpf_prog_test_run_opts(program, &options) != 0 || options.retval != expected) {
                throw Error(ErrorKind::io, std::string(name) + " returned " + std::to_string(options.retval));
            }
            least = std::min(least, options.duration);
        }
        return least;
    }

  private:
    template <class Value>
    void set(const char* map, std::uint32_t key, const Value& value) {
        bpf_map_update_elem(bpf_map__fd(bpf_object__find_map_by_name(object_.get(), map)), &key, &value, BPF_ANY);
    }
    std::vector<std::byte> make_frame(luwu_kind kind, luwu_form form) {
        std::vector<std::byte> datagram(sizeof(Head) + wiring_.payload_bytes);
        for (std::size_t i = sizeof(Head); i < datagram.size(); ++i) datagram[i] = static_cast<std::byte>(i * 37 % 64);
        Head head{};
        head.kind = static_cast<std::uint8_t>(kind);
        head.form = static_cast<std::uint8_t>(form);
        head.epoch = epoch_;
        head.count = kind == LUWU_GRADIENTS ? 1 : 0;
        head.sender = LUWU_FROM_PARENT;
        seal_.close(head, std::span(datagram).subspan(sizeof head));
        std::memcpy(datagram.data(), &head, sizeof head);
        return xdp_frame(job_.peers[kind == LUWU_GRADIENTS ? 0 : LUWU_XDP_PARENT], job_.own, datagram);
    }

    std::unique_ptr<bpf_object, decltype(&bpf_object__close)> object_;
    int calls_;
    Wiring wiring_;
    luwu_job job_{};
    Seal seal_;
    std::uint32_t epoch_ = 0;
};

void report(const char* what, const char* form, std::uint32_t bytes, unsigned nanoseconds) {
    std::printf("{\"what\": \"%s\", \"form\": \"%s\", \"bytes\": %u, \"nanoseconds\": %u}\n", what, form, bytes,
                nanoseconds);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return 2;
    const int calls = std::atoi(arguments[2]);
    try {
        for (const std::uint32_t bytes : {256U, 512U, 1024U, 1408U, 3328U}) {
            Measured many(arguments[1], calls, bytes, LUWU_XDP_MOST_CHILDREN);
            Measured one(arguments[1], calls, bytes, 1);
            for (const auto& [form, name] : {std::pair(LUWU_INT32, "int32"), std::pair(LUWU_INT16, "int16")}) {
                report("nothing", name, bytes, many.nanoseconds("measure_nothing", LUWU_GRADIENTS, form, XDP_DROP));
                report("aggregate", name, bytes, many.nanoseconds("measure_aggregate", LUWU_GRADIENTS, form, XDP_DROP));
                report("complete", name, bytes,
                       one.nanoseconds("measure_complete", LUWU_GRADIENTS, form, XDP_REDIRECT));
            }
            report("broadcast", "bytes", bytes,
                   many.nanoseconds("measure_broadcast", LUWU_PARAMETERS, LUWU_BYTES, XDP_REDIRECT));
        }
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
