#include "xdp_rig.h"

#include "store/error.h"

namespace luwu::test {

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

}  // namespace luwu::test
