# add_module(kv DEPENDS base device SOURCES a.cpp TESTS a_test.cpp LINKS fmt::fmt)
# makes the library droidspeak_kv from the current folder and, with tests on, one test binary kv_test
# whose cases carry the ctest label `unit`.
find_package(Threads REQUIRED)

set(DROIDSPEAK_WARNINGS -Wall -Wextra -Wshadow -Wconversion)
if(DROIDSPEAK_WERROR)
  list(APPEND DROIDSPEAK_WARNINGS -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND DROIDSPEAK_WARNINGS -Wno-restrict)  # false alarms of g++ 12 on string literals
  if(CMAKE_UNITY_BUILD)
    list(APPEND DROIDSPEAK_WARNINGS -Wno-subobject-linkage)  # takes a joined source for a header
  endif()
endif()
set_property(GLOBAL PROPERTY DROIDSPEAK_MODULE_TABLE "")

add_library(droidspeak_options INTERFACE)
target_include_directories(droidspeak_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(droidspeak_options INTERFACE Threads::Threads)
target_compile_options(droidspeak_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -ffp-contract=off>)
# What a sanitizer finds ends the process, and so does what debug_check and the standard library check.
if(DROIDSPEAK_SANITIZE)
  set(DROIDSPEAK_DEBUG_CHECKS ON)
  if(DROIDSPEAK_FUZZ)  # tests too: they and the fuzz targets are made of the same objects
    string(APPEND DROIDSPEAK_SANITIZE ",fuzzer-no-link")
  endif()
  target_compile_options(droidspeak_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DROIDSPEAK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  # vptr opens a pipe at each new type: a false alarm where a test lets the descriptors run out.
  if(DROIDSPEAK_SANITIZE MATCHES undefined)
    target_compile_options(droidspeak_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>)
  endif()
  target_link_options(droidspeak_options INTERFACE -fsanitize=${DROIDSPEAK_SANITIZE})
endif()
if(DROIDSPEAK_DEBUG_CHECKS)
  target_compile_definitions(droidspeak_options INTERFACE DROIDSPEAK_DEBUG_CHECKS _GLIBCXX_ASSERTIONS)
endif()

# keep_apart(a.cpp b.cpp): files that are compiled alone also where files are joined (CMAKE_UNITY_BUILD), since they use
# names of their own that others use too.
function(keep_apart)
  set_property(SOURCE ${ARGN} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(add_module name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;SOURCES;TESTS;LINKS;TEST_LINKS" ${ARGN})
  add_library(droidspeak_${name} STATIC ${ARG_SOURCES})
  if(name IN_LIST DROIDSPEAK_APART)
    set_target_properties(droidspeak_${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  list(TRANSFORM ARG_DEPENDS PREPEND droidspeak_ OUTPUT_VARIABLE libraries)
  target_link_libraries(droidspeak_${name} PUBLIC droidspeak_options ${libraries} ${ARG_LINKS})
  target_compile_options(droidspeak_${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${DROIDSPEAK_WARNINGS}>)
  string(REPLACE ";" " " depends "${ARG_DEPENDS}")
  set_property(GLOBAL APPEND_STRING PROPERTY DROIDSPEAK_MODULE_TABLE "${name}: ${depends}\n")
  if(DROIDSPEAK_TESTS AND ARG_TESTS)
    add_test_binary(${name}_test LABEL unit SOURCES ${ARG_TESTS}
                    LINKS droidspeak_${name} ${ARG_TEST_LINKS})
  endif()
endfunction()

# add_test_binary(x_test LABEL unit [e2e] SOURCES ... LINKS ...): GoogleTest binary, its cases run by ctest. The target
# compiled_tests builds all that ctest runs, without the programs.
add_custom_target(compiled_tests)
function(add_test_binary name)
  cmake_parse_arguments(ARG "" "" "LABEL;SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} droidspeak_test_limit GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${DROIDSPEAK_WARNINGS}>)
  # Half the time to compile; what is tested keeps its level, and so do the tests that compute slow references.
  if(NOT name MATCHES "^(codec|ops|ops_cuda|parity|profiler)_test$")
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
  # Only where they are used: what does not know its folder comes from the compiler cache in other clones, too.
  foreach(source ${ARG_SOURCES})
    file(STRINGS ${source} uses REGEX "DROIDSPEAK_(SOURCE|BINARY)_DIR|parity/golden\\.h" LIMIT_COUNT 1)
    if(uses)
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS
        DROIDSPEAK_SOURCE_DIR="${CMAKE_SOURCE_DIR}" DROIDSPEAK_BINARY_DIR="${CMAKE_BINARY_DIR}")
    endif()
  endforeach()
  add_dependencies(compiled_tests ${name})
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT 900)
endfunction()

# The declared dependencies, one line per module, read by the architecture test.
function(write_module_table)
  get_property(table GLOBAL PROPERTY DROIDSPEAK_MODULE_TABLE)
  file(WRITE ${CMAKE_BINARY_DIR}/modules.txt "${table}")
endfunction()
