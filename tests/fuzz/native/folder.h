// A folder in memory for targets that read files; gone at the end of the process.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "target.h"

namespace luwu::fuzz {

class Folder {
  public:
    Folder() {
        const char* given = std::getenv("TMPDIR");  // tools/fuzz.py removes it after a finding, too
        const std::string parent = given != nullptr                            ? given
                                   : std::filesystem::is_directory("/dev/shm") ? "/dev/shm"
                                                                               : "/tmp";
        std::string path = parent + "/luwu-fuzz-XXXXXX";
        if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make a folder");
        path_ = path;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }
    void write(const std::string& name, Bytes bytes) const {
        std::ofstream file(path_ + "/" + name, std::ios::binary | std::ios::trunc);
        file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    [[nodiscard]] std::vector<std::byte> read(const std::string& name) const {
        std::ifstream file(path_ + "/" + name, std::ios::binary | std::ios::ate);
        std::vector<std::byte> bytes(static_cast<std::size_t>(std::max<std::streamoff>(file.tellg(), 0)));
        file.seekg(0);
        file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        return bytes;
    }

  private:
    std::string path_;
};

}  // namespace luwu::fuzz
