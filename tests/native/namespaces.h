// Network namespaces of this process: they are gone when it ends, however it ends.
#pragma once

#include <string>
#include <vector>

#include "fabric/core/descriptor.h"

namespace luwu::test {

// Why there can be none here, or "".
[[nodiscard]] const std::string& namespaces_missing();

class Namespace {
  public:
    Namespace();

    // This thread, and what it starts and opens meanwhile.
    class Inside {
      public:
        explicit Inside(const Namespace& inner);
        ~Inside();
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;

      private:
        fabric::Descriptor outside_;
    };
    void ip(const std::vector<std::string>& commands) const;  // each as `ip` has it
    [[nodiscard]] int descriptor() const { return file_.get(); }

  private:
    fabric::Descriptor file_;
};

// A cable between two interfaces, both up, to which frames can be redirected by their drivers.
void join(const Namespace& left, const std::string& left_name, const Namespace& right, const std::string& right_name);

}  // namespace luwu::test
