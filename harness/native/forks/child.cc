// A child that a C library forks, for tests: nothing that Python has registered for forks is called in it, and it runs
// no Python, whose interpreter lock another thread may have held.
#include <unistd.h>

// Forks a child that writes a byte to `told` when all that is done in it at a fork is done, and lives until `ended` is
// at its end. Returns the child's process id, or -1.
extern "C" __attribute__((visibility("default"))) pid_t luwu_fork_child(int told, int ended) {
    const pid_t child = fork();
    if (child != 0) return child;
    char byte = 0;
    const bool good = write(told, &byte, 1) == 1 && read(ended, &byte, 1) == 0;
    _exit(good ? 0 : 1);
}
