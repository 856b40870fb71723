#include "kernels/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace luwu::kernels {
namespace {

#if defined(__x86_64__)

bool bit(unsigned word, unsigned number) { return ((word >> number) & 1U) != 0; }

// The registers that the operating system saves (XCR0).
unsigned saved_registers() {
    unsigned low = 0;
    unsigned high = 0;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

Processor ask() {
    constexpr unsigned kAvxRegisters = 0x06;     // XMM, YMM
    constexpr unsigned kAvx512Registers = 0xe6;  // and masks, both parts of ZMM
    Processor found;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
    found.crc32c = bit(c, 20);  // SSE 4.2
    const bool multiplies = bit(c, 1);
    const unsigned saved = bit(c, 27) ? saved_registers() : 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
    found.avx2 = bit(b, 5) && (saved & kAvxRegisters) == kAvxRegisters;
    const bool wide = (saved & kAvx512Registers) == kAvx512Registers && bit(b, 16);
    found.avx512 = wide && bit(b, 17) && bit(b, 30) && bit(b, 31);
    found.vpclmulqdq = wide && multiplies && bit(c, 10);
    return found;
}

#elif defined(__aarch64__)

Processor ask() {
    Processor found;
    found.crc32c = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
    return found;
}

#else

Processor ask() { return {}; }

#endif

}  // namespace

const Processor& processor() {
    static const Processor found = ask();
    return found;
}

}  // namespace luwu::kernels
