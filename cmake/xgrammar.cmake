# xgrammar's library, from the source that `tools/setup build` gets or that the bundle carries, as the target
# xgrammar::xgrammar. It has its own build, since it sets its own flags, and is built once for all build folders of
# a clone that use the same compiler and flags.
set(XGRAMMAR_VERSION 0.2.8)
set(xgrammar_source "")
foreach(folder ${CMAKE_SOURCE_DIR}/.cache/xgrammar/source-${XGRAMMAR_VERSION} ${DROIDSPEAK_BUNDLE}/xgrammar)
  if(NOT xgrammar_source AND EXISTS ${folder}/include/xgrammar/xgrammar.h)
    set(xgrammar_source ${folder})
  endif()
endforeach()
if(NOT xgrammar_source)
  message(FATAL_ERROR "xgrammar ${XGRAMMAR_VERSION} was found neither in .cache/xgrammar nor in the bundle. `tools/setup build` "
    "gets it; without a network, run `make bundle` on a machine that has it and bring the folder here.")
endif()

# Its warnings are its own, and link-time optimisation would need the same compiler for everything.
set(xgrammar_flags "-w -fno-lto")
if(DROIDSPEAK_SANITIZE)
  string(APPEND xgrammar_flags " -fsanitize=${DROIDSPEAK_SANITIZE} -fno-sanitize=undefined -fno-omit-frame-pointer")
endif()
set(build_script ${CMAKE_SOURCE_DIR}/cmake/build_xgrammar.cmake)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${build_script})
file(MD5 ${build_script} script_digest)
string(MD5 digest "${script_digest} ${CMAKE_CXX_COMPILER} ${xgrammar_flags}")
string(SUBSTRING ${digest} 0 8 digest)
set(xgrammar_library
  ${CMAKE_SOURCE_DIR}/.cache/xgrammar/${XGRAMMAR_VERSION}-${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}-${digest}/libxgrammar.a)

add_custom_command(
  OUTPUT ${xgrammar_library}
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${xgrammar_source} -DLIBRARY=${xgrammar_library}
          -DCOMPILER=${CMAKE_CXX_COMPILER} "-DFLAGS=${xgrammar_flags}" "-DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
          -P ${build_script}
  COMMENT "Building xgrammar ${XGRAMMAR_VERSION}"
  VERBATIM)
add_custom_target(xgrammar_library DEPENDS ${xgrammar_library})
add_library(xgrammar::xgrammar STATIC IMPORTED GLOBAL)
set_target_properties(xgrammar::xgrammar PROPERTIES IMPORTED_LOCATION ${xgrammar_library})
target_include_directories(xgrammar::xgrammar SYSTEM INTERFACE ${xgrammar_source}/include
  ${xgrammar_source}/3rdparty/dlpack/include)
add_dependencies(xgrammar::xgrammar xgrammar_library)
