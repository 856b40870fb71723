// The functions that a program of tests calls through ctypes, see harness/disk/recorder.py.
#include <mutex>

#include "recorder.h"

using namespace luwu::disk;

// Begins to note calls under `root` in the open file `log`; with `calls_too` also those that change nothing.
LUWU_PUBLIC void luwu_disk_start(const char* root, int log, int calls_too) {
    State& now = state();
    {
        const std::lock_guard lock(now.mutex);
        now.root = root;
        now.log = log;
        now.calls_too = calls_too != 0;
        now.seen.clear();
        now.handles.clear();
    }
    make_shared_counters();
    recording = true;
}
LUWU_PUBLIC void luwu_disk_stop() { recording = false; }
LUWU_PUBLIC void luwu_disk_mark(const char* text) {
    if (recording) note(Entry{.kind = Kind::mark, .begin = tick(), .name = text}, 0);
}
// Says for this thread's next sync where in Python it is called.
LUWU_PUBLIC void luwu_disk_label(const char* text) { label = text; }
// Lets the call with this key, as a log has it, fail once.
LUWU_PUBLIC void luwu_disk_fail(const char* key, int fault) {
    State& now = state();
    const std::lock_guard lock(now.mutex);
    now.fault_key = key;
    now.fault = static_cast<Fault>(fault);
    now.fault_met = false;
}
LUWU_PUBLIC int luwu_disk_met() { return state().fault_met ? 1 : 0; }
