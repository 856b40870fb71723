# Target luwu_xdp: defines LUWU_HAVE_XDP (1 or 0). Where libbpf and clang were found, it links libbpf and has the path of
# the XDP switch, compiled from bpf/, which native/switch/xdp_program.cc takes into the library.
add_library(luwu_xdp INTERFACE)
set(LUWU_HAVE_XDP 0)

if(LUWU_XDP)
    find_program(LUWU_CLANG NAMES clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14)
    find_path(LUWU_BPF_INCLUDE_DIR bpf/libbpf.h)
    find_library(LUWU_BPF_LIBRARY bpf)
    if(LUWU_CLANG AND LUWU_BPF_INCLUDE_DIR AND LUWU_BPF_LIBRARY)
        set(LUWU_HAVE_XDP 1)
    endif()
endif()

if(LUWU_HAVE_XDP)
    message(STATUS "LuWu XDP: ${LUWU_BPF_LIBRARY}, ${LUWU_CLANG}")
    file(GLOB LUWU_XDP_SOURCES CONFIGURE_DEPENDS bpf/*.h bpf/*.c)
    # luwu_compile_xdp(FOLDER/NAME.bpf.c): becomes NAME.bpf.o in the build folder
    function(luwu_compile_xdp SOURCE)
        get_filename_component(NAME "${SOURCE}" NAME_WE)
        add_custom_command(
            OUTPUT "${CMAKE_BINARY_DIR}/${NAME}.bpf.o"
            COMMAND "${LUWU_CLANG}" -target bpf -mcpu=v3 -O2 -g -fno-strict-aliasing -ffreestanding -Wall -Wextra -Werror
                -I "${PROJECT_SOURCE_DIR}/native" -idirafter "${LUWU_BPF_INCLUDE_DIR}"
                -idirafter "/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}"
                -c "${PROJECT_SOURCE_DIR}/${SOURCE}" -o "${CMAKE_BINARY_DIR}/${NAME}.bpf.o"
            DEPENDS "${PROJECT_SOURCE_DIR}/${SOURCE}" ${LUWU_XDP_SOURCES} "${PROJECT_SOURCE_DIR}/native/fabric/protocol/wire.h"
                "${PROJECT_SOURCE_DIR}/native/switch/xdp_layout.h"
            COMMENT "Compiling ${SOURCE}" VERBATIM)
    endfunction()
    luwu_compile_xdp(bpf/switch.bpf.c)
    set(LUWU_XDP_OBJECT "${CMAKE_BINARY_DIR}/switch.bpf.o")
    set_source_files_properties(native/switch/xdp_program.cc PROPERTIES
        OBJECT_DEPENDS "${LUWU_XDP_OBJECT}" COMPILE_DEFINITIONS LUWU_XDP_OBJECT="${LUWU_XDP_OBJECT}")
    target_include_directories(luwu_xdp SYSTEM INTERFACE "${LUWU_BPF_INCLUDE_DIR}")
    target_link_libraries(luwu_xdp INTERFACE "${LUWU_BPF_LIBRARY}")
else()
    message(STATUS "LuWu XDP: none (clang or libbpf's headers are absent, or it is switched off)")
endif()
target_compile_definitions(luwu_xdp INTERFACE LUWU_HAVE_XDP=${LUWU_HAVE_XDP})
