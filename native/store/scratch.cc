#include "store/scratch.h"

#include <unistd.h>

namespace luwu::store {

namespace {
constexpr const char* kScratchName = "/scratch.luwu";
}

std::vector<File> make_scratch(const std::vector<std::string>& folders) {
    std::vector<File> files;
    for (const std::string& folder : folders) {
        const std::string path = folder + kScratchName;
        unlink(path.c_str());  // of a process that was killed between the next two lines
        files.push_back(open_file(path, true, false));
        unlink(path.c_str());
    }
    return files;
}

}  // namespace luwu::store
