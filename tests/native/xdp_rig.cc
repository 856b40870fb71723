#include "xdp_rig.h"

#include <doctest/doctest.h>

#include "store/error.h"

namespace luwu::test {

#if LUWU_HAVE_XDP
const std::string& xdp_refused() {
    static const std::string why = []() -> std::string {
        try {
            const XdpRig rig(1);
            return "";
        } catch (const Error& error) {
            return error.what();
        }
    }();
    return why;
}
#else
const std::string& xdp_refused() {
    static const std::string why = switching::xdp_missing();
    return why;
}
#endif

bool can_run_xdp() {
    if (xdp_refused().empty()) return true;
    MESSAGE("SKIPPED: no XDP here: " << xdp_refused());
    return false;
}

}  // namespace luwu::test
