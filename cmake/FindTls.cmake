# Target luwu_tls: defines LUWU_HAVE_OPENSSL (1 or 0) and links OpenSSL where it was found.
add_library(luwu_tls INTERFACE)
set(LUWU_HAVE_OPENSSL 0)

if(LUWU_TLS)
    find_package(OpenSSL 1.1.1 QUIET)
    if(OPENSSL_FOUND)
        set(LUWU_HAVE_OPENSSL 1)
    endif()
endif()

if(LUWU_HAVE_OPENSSL)
    message(STATUS "LuWu TLS: OpenSSL ${OPENSSL_VERSION}")
    target_link_libraries(luwu_tls INTERFACE OpenSSL::SSL)
else()
    message(STATUS "LuWu TLS: none (OpenSSL's headers are absent, or it is switched off)")
endif()
target_compile_definitions(luwu_tls INTERFACE LUWU_HAVE_OPENSSL=${LUWU_HAVE_OPENSSL})
