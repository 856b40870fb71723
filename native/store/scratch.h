// Files for data that need not survive a crash.
#pragma once

#include <string>
#include <vector>

#include "store/files.h"

namespace luwu::store {

// Makes empty files without names, one in each folder, for data that need not survive a crash: they are
// gone when they are closed, however the process ends. Throws Error(no_space).
[[nodiscard]] std::vector<File> make_scratch(const std::vector<std::string>& folders);

}  // namespace luwu::store
