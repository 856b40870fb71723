// A native object whose destructor runs without Python's lock, because it waits for threads and peers: meanwhile other
// Python threads go on. `Native` is what Python sees as the class, so no other destructor may run before this one.
#pragma once

#include <Python.h>

#include <utility>

namespace luwu::bindings {

// A base, so that it is destroyed after `Native`.
class TakesLockAgain {
  protected:
    void give_lock_up() { state_ = PyEval_SaveThread(); }
    ~TakesLockAgain() {
        if (state_ != nullptr) PyEval_RestoreThread(state_);
    }

  private:
    PyThreadState* state_ = nullptr;
};

template <typename Native>
class WithoutGil final : private TakesLockAgain, public Native {
  public:
    using Native::Native;
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;
    // Runs in a thread that holds the lock: where a constructor throws, perhaps without it, no destructor runs.
    ~WithoutGil() { give_lock_up(); }
};

}  // namespace luwu::bindings
