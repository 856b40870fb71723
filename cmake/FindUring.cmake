# Target luwu_uring: defines LUWU_HAVE_URING (1 or 0) and links liburing, statically where that is possible, so that a
# wheel needs no system package.
add_library(luwu_uring INTERFACE)
set(LUWU_HAVE_URING 0)

if(LUWU_URING)
    find_path(URING_INCLUDE_DIR liburing.h)
    find_library(URING_STATIC_LIBRARY NAMES liburing.a)
    find_library(URING_SHARED_LIBRARY NAMES uring)

    # A static library may have been compiled without -fPIC, and a header may be there without its library: link to see.
    file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/check_uring.cc" [[
#include <liburing.h>
int main() {
    io_uring ring;
    if (io_uring_queue_init(8, &ring, 0) == 0) io_uring_queue_exit(&ring);
    return 0;
}
]])
    foreach(CANDIDATE IN ITEMS STATIC SHARED)
        if(NOT LUWU_HAVE_URING AND URING_INCLUDE_DIR AND URING_${CANDIDATE}_LIBRARY)
            try_compile(URING_${CANDIDATE}_LINKS
                "${CMAKE_CURRENT_BINARY_DIR}/check_uring" "${CMAKE_CURRENT_BINARY_DIR}/check_uring.cc"
                COMPILE_DEFINITIONS -fPIC
                CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${URING_INCLUDE_DIR}"
                LINK_OPTIONS -shared -Wl,-z,defs
                LINK_LIBRARIES "${URING_${CANDIDATE}_LIBRARY}")
            if(URING_${CANDIDATE}_LINKS)
                set(LUWU_HAVE_URING 1)
                set(URING_LIBRARY "${URING_${CANDIDATE}_LIBRARY}")
            endif()
        endif()
    endforeach()
endif()

if(LUWU_HAVE_URING)
    message(STATUS "LuWu disk access: io_uring (${URING_LIBRARY})")
    target_include_directories(luwu_uring SYSTEM INTERFACE "${URING_INCLUDE_DIR}")
    target_link_libraries(luwu_uring INTERFACE "${URING_LIBRARY}")
else()
    message(STATUS "LuWu disk access: thread pool (liburing is absent or switched off)")
endif()
target_compile_definitions(luwu_uring INTERFACE LUWU_HAVE_URING=${LUWU_HAVE_URING})
