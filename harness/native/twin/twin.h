// The twin: a GPU driver without a GPU, which offers the functions of CUDA's driver interface that LuWu calls, and
// these.
//
// Streams are threads that do their work in order and late, by random delays from a seed. Device memory is ordinary
// memory that reads as 0xff before it is written and when it was freed. Copies go through io_uring's registered
// buffers, which keep the pages that they had when they were registered, as a device's copies do. A checker knows what
// is ordered by events, calls and the server, and reports what is not. The default stream (null) runs in the thread
// that calls.
#pragma once

#include <cstddef>
#include <cstdint>

#define TWIN_EXPORT extern "C" __attribute__((visibility("default")))

struct TwinAccess {
    const void* memory;
    std::size_t bytes;
    int writes;
    const char* what;
};

struct TwinSettings {
    std::uint64_t seed;
    std::uint32_t most_delay_microseconds;  // before each piece of a stream's work
    // A clocked twin copies nothing: its copies and kernels take the time that they would take. 0: not clocked.
    double bytes_per_second;
    double seconds_per_second;  // the twin's seconds in one of ours
};

// Forgets everything: streams, memory and findings. Nothing may be in use.
TWIN_EXPORT void twin_reset(const TwinSettings* settings);
// Changes how late work is, from now on.
TWIN_EXPORT void twin_delay(std::uint32_t most_microseconds);
// Enqueues work that makes these accesses.
TWIN_EXPORT void twin_launch(void* stream, void (*function)(void*), void* argument, const TwinAccess* accesses,
                             std::size_t count, double seconds);
// Accesses by the server, and what it and the calling thread know of each other.
TWIN_EXPORT void twin_server_access(const TwinAccess* access);
TWIN_EXPORT void twin_server_sees_caller();
TWIN_EXPORT void twin_caller_sees_server();
// The next call of this function fails with this status, after `after` that do not; an asynchronous one when it is due.
TWIN_EXPORT void twin_fail(const char* function, int after, int status);
// Number of findings, and one of them in words.
TWIN_EXPORT std::size_t twin_findings();
TWIN_EXPORT const char* twin_finding(std::size_t index);
TWIN_EXPORT void twin_forget_findings();
// Bytes that are registered now, and the most device memory that was in use.
TWIN_EXPORT std::size_t twin_registered_bytes();
TWIN_EXPORT std::size_t twin_device_bytes();
TWIN_EXPORT std::size_t twin_most_device_bytes();
