// Entry point of the native unit tests; each other file in this folder holds the tests of one part.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
