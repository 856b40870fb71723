// The slots of gradients inside the kernel, as a switch's node sees them: the XDP program adds, this reads. What comes
// another way than through an interface with the program is given to the program from here.
#pragma once

#include <memory>

#include "switch/slot_table.h"
#include "switch/xdp_program.h"

namespace luwu::switching {

// The program must outlive it.
[[nodiscard]] std::unique_ptr<SlotTable> make_kernel_slots(XdpProgram& program);

}  // namespace luwu::switching
